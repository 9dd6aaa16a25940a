"""The case study: nodules of LIDC-IDRI, with their readers' ratings.

Stage: bundled tables, CT series or files → data sets with labels, votes, patients, features and patches → views → logits.

    build, readings                   the annotations: how the tables were made; the tables, as data frames
    volumes                           readers' outlines: pixels inside, contour volumes, cached on disk
    splits, sets                      folds by patient; the paper's data sets, and labels from votes
    archive, nodulemnist              data sets from files
    ct/                               DICOM series → CT patches
    views                             patches → views: planes through patches, random or fixed
    nets/                             views → logits
"""

from .archive import Archive as Archive
from .archive import read_archive as read_archive
from .archive import window as window
from .archive import write_archive as write_archive
from .nodulemnist import NoduleMNIST as NoduleMNIST
from .nodulemnist import read_nodulemnist as read_nodulemnist
from .readings import annotations as annotations
from .readings import nodules as nodules
from .sets import NoduleSet as NoduleSet
from .sets import balanced_set as balanced_set
from .sets import binary_set as binary_set
from .sets import binary_votes as binary_votes
from .sets import expected_score as expected_score
from .sets import majority as majority
from .sets import montage as montage
from .sets import rating_set as rating_set
from .sets import rounded_mean as rounded_mean
from .sets import vote_shares as vote_shares
from .splits import folds as folds
from .splits import train_valid_test as train_valid_test
from .views import FixedViews as FixedViews
from .views import RandomViews as RandomViews
from .views import average_over_views as average_over_views
from .volumes import contour_volumes as contour_volumes
