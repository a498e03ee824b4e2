"""An exponential moving average (EMA) of a model's weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainer.distributed.sharding import local, local_rows


class WeightAverage:
    """The average of the parameters of ``model``, in their precision and on their device.

    After n steps the decay is min(decay, (1 + n) / (10 + n)), the rule of TensorFlow's
    ExponentialMovingAverage: early in training the average follows the weights closely.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters, self._decay = dict(model.named_parameters()), decay
        self._weights = {name: weight.detach().clone() for name, weight in self._parameters.items()}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Updates the average with the weights after ``steps`` steps, without waiting for the device."""
        decay = min(self._decay, (1 + steps) / (10 + steps))
        current = [local(weight) for weight in self._parameters.values()]
        torch._foreach_lerp_([local(weight) for weight in self._weights.values()], current, 1 - decay)

    @contextmanager
    @torch.no_grad()
    def in_model(self) -> Iterator[None]:
        """Swaps the model's weights with the average, and back at the end, without changing any bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        # In place, because optimizer and kernels hold these tensors, and one by one, to need little memory.
        for name, weight in self._parameters.items():
            current, average = local(weight), local(self._weights[name])
            before = current.clone()
            current.copy_(average)
            average.copy_(before)

    def state_dict(self) -> dict[str, Tensor]:
        """Name of a parameter -> its average."""
        return dict(self._weights)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores ``state``, whole or sharded. Raises ValueError when it does not fit the model."""
        if state.keys() != self._weights.keys():
            raise ValueError(f"the average has other parameters: {min(state.keys() ^ self._weights.keys())}")
        for name, weight in self._weights.items():
            if state[name].shape != weight.shape or state[name].dtype != weight.dtype:
                raise ValueError(f"the average of {name} is {state[name].dtype} {list(state[name].shape)}")
            local(weight).copy_(local_rows(state[name], weight))

    def restart(self) -> None:
        """Resets the average to the model's weights."""
        self.load_state_dict({name: weight.detach() for name, weight in self._parameters.items()})
