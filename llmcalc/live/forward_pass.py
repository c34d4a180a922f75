"""One forward pass: its tokens' places, its padding, and what is worked out once for all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llmcalc.forward import Rotary
from llmcalc.live.ops import See, nobody
from llmcalc.live.rotary import angles

Watch = Callable[[int | None, str, Tensor], None]
"""Called with layer, slot and tensor as they come about."""


@dataclass(slots=True)
class Pass:
    """Where the tokens of one forward pass stand, and which are padding.

    ``positions`` is (B, T), or (1, T) where no sequence is padded; ``valid`` is (B, P + T).
    ``first`` is P, how many tokens were seen before.
    """

    positions: Tensor
    first: int
    valid: Tensor | None
    watch: Watch | None = None
    weights_of: frozenset[int] = frozenset()
    _masks: dict[int | None, Tensor | None] = field(default_factory=dict)
    _angles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def new(self) -> int:
        """Tokens per sequence in this pass."""
        return int(self.positions.shape[1])

    def see(self, layer: int | None, slot: str, tensor: Tensor) -> None:
        """Shows a tensor to whoever watches."""
        if self.watch is not None:
            self.watch(layer, slot, tensor)

    def at(self, layer: int) -> See:
        """Shows tensors of one layer to whoever watches."""
        return nobody if self.watch is None else lambda slot, tensor: self.see(layer, slot, tensor)

    def angles(self, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of this pass's positions, (B or 1, 1, T, dim/2) each."""
        key = id(rotary)
        if key not in self._angles:
            self._angles[key] = angles(rotary, self.positions, dtype)
        return self._angles[key]

    def mask(self, window: int | None, places: Tensor) -> Tensor | None:
        """Which keys each query may see, (B or 1, 1, T, S); None where plain causality says all.

        ``places`` (S) says where the keys stand; layers of one window share a mask.
        """
        if window not in self._masks:
            self._masks[window] = self._mask(window, places)
        return self._masks[window]

    def _mask(self, window: int | None, places: Tensor) -> Tensor | None:
        if self.valid is None and self._plainly_causal(window):
            return None
        end = self.first + self.new
        at = torch.arange(self.first, end, device=places.device)[:, None]  # (T, 1)
        keys = places[None, :]  # (1, S)
        sees = keys <= at  # (T, S)
        if window is not None:
            sees &= at - keys < window
        if self.valid is None:
            return sees[None, None]  # (1, 1, T, S)
        real = self.valid[:, None, None, places]  # (B, 1, 1, S)
        # padding sees itself, so that no row of the softmax is empty
        itself = (at == keys)[None, None]  # (1, 1, T, S)
        return (sees[None, None] & real) | itself  # (B, 1, T, S)

    def _plainly_causal(self, window: int | None) -> bool:
        """Whether every key that is held may be seen, but for those in the future."""
        if self.new == 1:
            return True
        return self.first == 0 and (window is None or self.new <= window)
