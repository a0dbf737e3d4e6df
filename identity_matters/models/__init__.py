"""Image classifiers: the paper's network (section 4, Table 1) and the other rows of Table 2.

A network is a `Model`: pure `init` and `apply` around a flax module, images in the order NHWC.

* `interface`: `Model`, and what `init` and `apply` take and return.
* `all_conv_residual`: the paper's network, with an option for everything that the text leaves open.
* `all_cnn`, `resnet`, `densenet`: the networks that Table 2 compares it with.
* `mlp`: multilayer perceptrons to 1200 layers, with and without the identity.
* `layers`, `initializers`, `checks`: what they share.
* `registry`: the factories by name.
"""
