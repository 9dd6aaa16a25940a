"""The paper's networks: views (n, s, h, w) in [0, 1] → logits (n, num_outputs).

layers        VGG16's first two convolutions; features of one view: ConvNet, InceptionNet, gated; metadata; initial weights
multiview     features of all views → logits, to which those of metadata are added; nets of fixed sizes, by name
"""

from .layers import ConvBody as ConvBody
from .layers import GatedBody as GatedBody
from .layers import InceptionBlock as InceptionBlock
from .layers import InceptionBody as InceptionBody
from .layers import LowLevelBlock as LowLevelBlock
from .layers import MetadataBlock as MetadataBlock
from .layers import RecurrentGate as RecurrentGate
from .multiview import FullyConvolutionalNet as FullyConvolutionalNet
from .multiview import GatedNet as GatedNet
from .multiview import MultiViewNet as MultiViewNet
from .multiview import WithMetadata as WithMetadata
from .multiview import convnet as convnet
from .multiview import each_view as each_view
from .multiview import fully_convolutional_net as fully_convolutional_net
from .multiview import gated_net as gated_net
from .multiview import inception_net as inception_net
from .multiview import metadata_net as metadata_net
from .multiview import pool_views as pool_views
