"""The networks by name; a factory takes its settings by keyword and returns a Model."""

from identity_matters.models.all_cnn import all_cnn_c
from identity_matters.models.all_conv_residual import all_conv_residual
from identity_matters.models.densenet import densenet
from identity_matters.models.mlp import mlp
from identity_matters.models.resnet import resnet
from identity_matters.models.resnet_imagenet import resnet_imagenet

MODELS = {
    "all_conv_residual": all_conv_residual,
    "all_cnn_c": all_cnn_c,
    "resnet": resnet,
    "resnet_imagenet": resnet_imagenet,
    "densenet": densenet,
    "mlp": mlp,
}
