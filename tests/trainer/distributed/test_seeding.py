"""The draws of a rank follow from its seed and keys, and are those of torch.manual_seed."""

import torch

from trainer.distributed.seeding import seed_generators

CPU = torch.device("cpu")


def drawn(*keys: int) -> torch.Tensor:
    seed_generators(CPU, *keys)
    value = torch.initial_seed()
    found = torch.rand(8)
    torch.manual_seed(value)
    assert torch.rand(8).equal(found)
    return found


def test_equal_keys_give_equal_draws_and_others_do_not() -> None:
    assert drawn(3, 1, 2).equal(drawn(3, 1, 2))
    assert len({tuple(drawn(*keys).tolist()) for keys in ((3, 1, 2), (4, 1, 2), (3, 2, 1), (3, 1))}) == 4
