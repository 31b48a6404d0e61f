"""Batch norms folded into the convolutions before them, in a module that is not made of our
blocks."""

from collections import Counter

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

# the second is timm's: a batch norm and the activation after it
NORMS = ("BatchNorm2d", "BatchNormAct2d")


class _Tracer(fx.Tracer):
    """Sees convolutions and batch norms as wholes, those of libraries too."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Conv2d | nn.BatchNorm2d) or super().is_leaf_module(
            module, name
        )


def fold_batch_norms(module: nn.Module) -> int:
    """Fold, in place and for evaluation, every batch norm whose input is a convolution's output
    that nobody else uses; what is left of it is its activation. A module that torch.fx cannot trace
    stays as it is.

    Returns:
        How many were folded.
    """
    try:
        graph = _Tracer().trace(module)
    except (
        Exception
    ):  # whatever tracing stumbles over: control flow that depends on what an image holds
        return 0
    modules, calls = (
        dict(module.named_modules()),
        [node for node in graph.nodes if node.op == "call_module"],
    )
    once = {
        target for target, count in Counter(node.target for node in calls).items() if count == 1
    }
    folded = 0
    for node in calls:
        norm, source = modules[str(node.target)], node.args[0] if node.args else None
        if (
            type(norm).__name__ not in NORMS
            or not isinstance(norm, nn.BatchNorm2d)
            or not isinstance(source, fx.Node)
        ):
            continue
        conv = modules.get(str(source.target)) if source.op == "call_module" else None
        if (
            not isinstance(conv, nn.Conv2d)
            or len(source.users) > 1
            or not {node.target, source.target} <= once
        ):
            continue
        if norm.running_mean is None or norm.running_var is None:
            continue
        affine = norm.eps, norm.weight, norm.bias
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, *affine
        )
        parent, _, name = str(node.target).rpartition(".")
        # drop, act
        after = nn.Identity() if type(norm) is nn.BatchNorm2d else nn.Sequential(*norm.children())
        setattr(module.get_submodule(parent), name, after)
        folded += 1
    return folded
