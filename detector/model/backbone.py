"""The backbone: from an image to a map a level, level k at stride 2**k."""

from torch import Tensor, nn

from detector.model.layers import C3, SPPF, Conv


class Backbone(nn.Module):
    """Image (B, 3, H, W) -> {level: (B, channels[level], H / 2**level, W / 2**level)} for levels 2 to `top`."""

    def __init__(self, channels: dict[int, int], repeats: dict[int, int]) -> None:
        super().__init__()
        top = max(channels)
        self.stem = Conv(3, channels[1], kernel=6, stride=2, padding=2)
        self.down = nn.ModuleDict({str(k): Conv(channels[k - 1], channels[k], kernel=3, stride=2) for k in range(2, top + 1)})
        self.c3 = nn.ModuleDict({str(k): C3(channels[k], channels[k], repeats[k]) for k in range(2, top + 1)})
        self.sppf = SPPF(channels[top], channels[top])

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        x, maps = self.stem(x), {}
        for k in self.down:
            x = self.c3[k](self.down[k](x))
            maps[int(k)] = x
        maps[int(k)] = self.sppf(x)
        return maps
