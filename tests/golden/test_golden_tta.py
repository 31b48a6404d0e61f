"""Test-time augmentation: what the network sees in each pass, and the joined rows."""

import torch
from golden.cases import beside, close, each

from boltbox.detector.inference.tta import augmented, scaled
from boltbox.detector.weights.yolov5 import by_our_names


@each("tta")
def test_tta(case):
    network = case.network().eval()
    arrays = beside(case, case.meta["weights_file"])
    state = {
        k.removeprefix("in_w::"): torch.from_numpy(v)
        for k, v in arrays.items()
        if k.startswith("in_w::")
    }
    network.load_state_dict(by_our_names(network, state))
    images = case.tensor("in_images_u8").float() / 255
    assert list(images.shape[2:]) == case.meta["image_hw"]
    if "out_scaled_067" in case.arrays:  # the committed slice leaves them out
        close(
            scaled(images.flip(3), 0.83, network.max_stride), case["out_scaled_083_flipped"], 1e-5
        )
        close(scaled(images, 0.67, network.max_stride), case["out_scaled_067"], 1e-5)
    # processors round a convolution differently; what is left here is the golden numbers' own
    # rounding
    network.double()
    counts = []

    def counted(seen):
        rows = network.head.decode(network(seen))
        counts.append(rows.shape[1])
        return rows

    with torch.no_grad():
        per_level = network.head.rows_per_level
        rows = augmented(counted, per_level, network.max_stride, images.double())
    assert counts == case.meta["rows_per_pass_before_clip"]
    close(rows[..., :4], case["out_augmented"][..., :4], 2e-3, rtol=1e-4)  # boxes of up to 4700 px
    close(rows[..., 4:], case["out_augmented"][..., 4:], 2e-5)
