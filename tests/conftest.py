"""What every test starts from: one thread, nothing left behind in the default process group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny matrices on several threads of a busy machine take seconds instead of microseconds."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh_process_state() -> Iterator[None]:
    """Tests share a process: thread count and default group are put back."""
    threads = torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped, not failed, where there is no GPU."""
    num_gpus = torch.cuda.device_count()
    for item in items:
        if "gpu" in item.keywords and num_gpus < 1:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
        if "multi_gpu" in item.keywords and num_gpus < 2:
            item.add_marker(pytest.mark.skip(reason="needs two NVIDIA GPUs"))
