"""A Core ML package whose program PyTorch computes: only macOS has Apple's runtime."""

import numpy as np
import torch
from torch.nn.functional import pad, silu


def padded(x, edges, value=0.0):
    top, bottom, left, right = np.asarray(edges).tolist()
    return pad(x, (left, right, top, bottom), value=value)


def conv(x, weight, strides, dilations, groups, bias=None, pad_type="", pad=(0, 0, 0, 0)):
    edges = pad if pad_type == "custom" else (0, 0, 0, 0)
    strides = strides.tolist()
    return torch.conv2d(padded(x, edges), weight, bias, strides, 0, dilations.tolist(), int(groups))


def max_pool(x, kernel_sizes, strides, pad, **options):
    x = padded(x, pad, float("-inf"))
    return torch.max_pool2d(x, kernel_sizes.tolist(), strides.tolist())


def upsample(x, scale_factor_height, scale_factor_width):
    wider = x.repeat_interleave(int(scale_factor_width), 3)
    return wider.repeat_interleave(int(scale_factor_height), 2)


OPERATORS = {
    "add": lambda x, y: x + y,
    "concat": lambda values, axis, interleave: torch.cat(values, int(axis)),
    "conv": conv,
    "max_pool": max_pool,
    "mul": lambda x, y: x * y,
    "reshape": lambda x, shape: x.reshape(shape.tolist()),
    "sigmoid": torch.sigmoid,
    "silu": silu,
    "split": lambda x, split_sizes, axis: x.split(split_sizes.tolist(), int(axis)),
    "sub": lambda x, y: x - y,
    "transpose": lambda x, perm: x.permute(perm.tolist()),
    "upsample_nearest_neighbor": upsample,
}


def program_of(package):
    """Images -> the output of the package's program, operator by operator."""
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.models import MLModel

    model = MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()
    function = load(spec, spec.specificationVersion, model.weights_dir).functions["main"]

    def run(images):
        values = {"images": images}

        def value_of(variable):
            if isinstance(variable, tuple | list):
                return [value_of(each) for each in variable]
            if variable.name in values:
                return values[variable.name]
            known = variable.val
            is_float = isinstance(known, np.ndarray) and known.dtype.kind == "f"
            return torch.from_numpy(known) if is_float else known

        for operation in function.operations:
            if operation.op_type == "const":
                continue
            given = {
                k: value_of(v) for k, v in operation.inputs.items() if k != "name" and v is not None
            }
            made = OPERATORS[operation.op_type](**given)
            made = made if isinstance(made, tuple) else [made]
            for variable, value in zip(operation.outputs, made, strict=True):
                assert variable.shape == tuple(value.shape)
                values[variable.name] = value
        return values[function.outputs[0].name]

    return run
