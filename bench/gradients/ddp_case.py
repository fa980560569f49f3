"""torch's DistributedDataParallel over gloo: two processes on loopback, with its communication hooks.

Its gradients are the recorded ones: the model's output is the sum of parameter times gradient. A step is that, its
backward pass and the exchange; the first two are the same for every hook. Stacked tensors are split into matrices,
which PowerSGD needs to find anything to compress.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from bench.gradients.codec_case import NUM_TIMED, WARM_UP, ErrorSums
from bench.gradients.recording import POWER_SGD_RANK, Gradients, Recording
from bench.replay.protocol import serve_calls

POWER_SGD_START = 2  # steps without compression: the least that it allows with error feedback
MIN_COMPRESSION = 2  # of a matrix that PowerSGD compresses, its default


def matrices(gradients: Gradients) -> Gradients:
    """The tensors with each stack taken apart."""
    apart: Gradients = {}
    for name, gradient in gradients.items():
        if gradient.ndim < 3:
            apart[name] = gradient
            continue
        for index, part in enumerate(gradient):
            apart[f"{name}.{index}"] = part[0] if part.shape[0] == 1 else part
    return apart


def sent_bytes(hook: str, shapes: Dict[str, Tuple[int, ...]]) -> int:
    """Bytes that a process contributes to one exchange, by the hook's arithmetic."""
    values = {name: int(np.prod(shape, dtype=np.int64)) for name, shape in shapes.items()}
    if hook == "fp16":
        return 2 * sum(values.values())
    if hook == "none":
        return 4 * sum(values.values())
    total = 0
    for name, shape in shapes.items():
        rows, columns = shape[0], values[name] // shape[0]
        rank = min(rows, columns, POWER_SGD_RANK)
        factors = (rows + columns) * rank
        total += 4 * (factors if len(shape) > 1 and factors * MIN_COMPRESSION < values[name] else values[name])
    return total


class Product(torch.nn.Module):
    """A model whose gradient is what it is given."""

    def __init__(self, shapes: Dict[str, Tuple[int, ...]]) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes.values()])

    def forward(self, gradients: List[torch.Tensor]) -> torch.Tensor:
        return torch.stack([(tensor * g).sum() for tensor, g in zip(self.tensors, gradients)]).sum()


class Rank:
    """One of the two processes."""

    def __init__(self, rank: int, port: int, file: str) -> None:
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        self._recording = Recording(Path(file))
        self._timed = [matrices(self._recording.push(i % len(self._recording))) for i in range(NUM_TIMED)]
        self.shapes = {name: gradient.shape for name, gradient in self._timed[0].items()}
        self._models: Dict[str, Any] = {}

    def quality(self, hook: str) -> Dict[str, float]:
        model, errors = self._model(hook), ErrorSums()
        for index in range(POWER_SGD_START):
            self._step(model, self._timed[index])
        # Its first compressed step has no residual yet.
        for index in range(len(self._recording)):
            push = matrices(self._recording.push(index))
            self._step(model, push)
            errors.add(push, dict(zip(push, (tensor.grad.numpy() for tensor in model.module.tensors))))
        raw = sent_bytes("none", self.shapes)
        return {
            "bytes_ratio": sent_bytes(hook, self.shapes) / raw,
            "bytes_a_push": sent_bytes(hook, self.shapes),
            **errors.result(),
        }

    def step(self, hook: str, count: int) -> Dict[str, float]:
        if hook not in self._models:
            self._models[hook] = self._model(hook)
            for index in range(POWER_SGD_START):
                self._step(self._models[hook], self._timed[index])
        model = self._models[hook]
        for index in range(WARM_UP):
            self._step(model, self._timed[index])
        dist.barrier()
        began = time.perf_counter()
        for index in range(count):
            self._step(model, self._timed[index % NUM_TIMED])
        return {"count": count, "seconds": time.perf_counter() - began}

    def close(self) -> None:
        dist.destroy_process_group()

    def _model(self, hook: str) -> Any:
        # One bucket: with several, PowerSGD's chained exchanges meet in another order on each side, and gloo aborts.
        whole_mb = sent_bytes("none", self.shapes) / 2**20 + 1
        model = torch.nn.parallel.DistributedDataParallel(
            Product(self.shapes), gradient_as_bucket_view=True, bucket_cap_mb=whole_mb
        )
        if hook == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=POWER_SGD_RANK, start_powerSGD_iter=POWER_SGD_START
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model

    def _step(self, model: Any, gradients: Gradients) -> None:
        model.zero_grad(set_to_none=False)
        model([torch.from_numpy(gradient) for gradient in gradients.values()]).backward()


def follow(port: int, file: str, orders: Any) -> None:
    """The second process: does what the first does, at the same time."""
    rank = Rank(1, port, file)
    for call, arguments in iter(orders.recv, None):
        getattr(rank, call)(**arguments)
    rank.close()


class DdpCase:
    def __init__(self) -> None:
        self._orders: Any = None

    def open(self, file: str) -> Dict[str, Any]:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        receiver, self._orders = context.Pipe(duplex=False)
        self._second = context.Process(target=follow, args=(port, file, receiver), daemon=True)
        self._second.start()
        self._first = Rank(0, port, file)
        return {}

    def quality(self, variant: str) -> Dict[str, float]:
        self._orders.send(("quality", {"hook": variant}))
        return self._first.quality(variant)

    def step(self, variant: str, count: int) -> Dict[str, float]:
        self._orders.send(("step", {"hook": variant, "count": count}))
        return self._first.step(variant, count)

    def close(self) -> None:
        if self._orders is None:
            return
        self._orders.send(None)
        self._first.close()
        self._second.join(10)


def main() -> int:
    case = DdpCase()
    try:
        return serve_calls({"open": case.open, "quality": case.quality, "step": case.step})
    finally:
        case.close()


if __name__ == "__main__":
    sys.exit(main())
