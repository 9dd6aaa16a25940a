"""The paper's networks: views (n, s, h, w) in [0, 1] → logits (n, num_outputs).

layers        VGG16's first two convolutions; convolutions, initial weights, checks of arguments
bodies        features of one view: ConvNet, InceptionNet, gated
multiview     features of all views → logits
metadata      metadata columns → logits that are added to those of the image
ready_made    nets of fixed sizes, by name
"""

from .bodies import ConvBody as ConvBody
from .bodies import GatedBody as GatedBody
from .bodies import InceptionBlock as InceptionBlock
from .bodies import InceptionBody as InceptionBody
from .bodies import RecurrentGate as RecurrentGate
from .layers import LowLevelBlock as LowLevelBlock
from .metadata import MetadataBlock as MetadataBlock
from .metadata import WithMetadata as WithMetadata
from .multiview import FullyConvolutionalNet as FullyConvolutionalNet
from .multiview import GatedNet as GatedNet
from .multiview import MultiViewNet as MultiViewNet
from .multiview import each_view as each_view
from .multiview import pool_views as pool_views
from .ready_made import convnet as convnet
from .ready_made import fully_convolutional_net as fully_convolutional_net
from .ready_made import gated_net as gated_net
from .ready_made import inception_net as inception_net
from .ready_made import metadata_net as metadata_net
