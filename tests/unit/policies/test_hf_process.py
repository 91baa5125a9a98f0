"""The sampler process: what its death, its parent's death and bad input mean."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import tiny_directory
from tests.processes import is_gone
from trialyard.core.errors import ContextOverflow, NotFoundError, PolicyError, StoreError
from trialyard.core.policy import Message, Sampling
from trialyard.policies.hf import HFPolicy
from trialyard.policies.hf_process import ProcessPolicy

ASK = [Message("user", "sum of list")]

PARENT = """
import asyncio, sys
from pathlib import Path
from trialyard.core.policy import Message, Sampling
from trialyard.policies.hf_process import ProcessPolicy

async def main():
    policy = ProcessPolicy(Path(sys.argv[1]))
    if sys.argv[2] == "idle":
        await policy.complete([Message("user", "sum")], Sampling(max_tokens=2))
    print(policy.process_id, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("model"))


async def test_it_says_what_the_same_model_says_in_this_process(directory: Path) -> None:
    here, there = HFPolicy(directory), ProcessPolicy(directory)
    try:
        sampling = Sampling(max_tokens=20, seed=4)
        ours, theirs = [await policy.complete(ASK, sampling) for policy in (here, there)]
        assert (ours.output_ids, ours.logprobs) == (theirs.output_ids, theirs.logprobs)
        assert there.num_sampled_tokens == len(theirs.output_ids or ())
        assert there.busy_s > 0
    finally:
        await here.close()
        await there.close()


async def test_a_killed_child_fails_calls_under_way_and_later_ones(directory: Path) -> None:
    policy = ProcessPolicy(directory)
    try:
        await policy.complete(ASK, Sampling(max_tokens=2))
        os.kill(policy.process_id, signal.SIGSTOP)
        waiting = [asyncio.ensure_future(policy.complete(ASK, Sampling())) for _ in range(20)]
        await asyncio.sleep(0.1)
        os.kill(policy.process_id, signal.SIGKILL)
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert all(isinstance(outcome, PolicyError) for outcome in outcomes)
        with pytest.raises(PolicyError, match="SIGKILL"):
            await policy.complete(ASK, Sampling())
    finally:
        await policy.close()


async def test_errors_keep_their_type_across_the_pipe(directory: Path) -> None:
    policy = ProcessPolicy(directory)
    try:
        with pytest.raises(ContextOverflow):
            await policy.complete([Message("user", "sum " * 100)], Sampling())
        with pytest.raises(StoreError):
            await policy.load(b"garbage", 1)
        assert policy.version == 0
    finally:
        await policy.close()


async def test_a_cancelled_call_leaves_the_others_alone(directory: Path) -> None:
    policy = ProcessPolicy(directory)
    try:
        calls = [
            asyncio.ensure_future(policy.complete(ASK, Sampling(max_tokens=40, seed=seed)))
            for seed in range(10)
        ]
        await asyncio.sleep(0)
        calls[3].cancel()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        failed = [index for index, out in enumerate(outcomes) if isinstance(out, BaseException)]
        assert failed == [3]
    finally:
        await policy.close()


async def test_a_missing_model_is_named(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no tokenizer"):
        ProcessPolicy(tmp_path / "nothing")
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    policy = ProcessPolicy(tmp_path)
    try:
        with pytest.raises(NotFoundError, match=r"model\.safetensors is missing"):
            await policy.complete(ASK, Sampling())
    finally:
        await policy.close()


async def test_close_ends_the_child_even_before_its_first_call(directory: Path) -> None:
    policy = ProcessPolicy(directory)
    await policy.close()
    await policy.close()
    assert is_gone(policy.process_id, within_s=0.0)


@pytest.mark.parametrize("moment", ["idle", "starting"])
def test_the_child_dies_with_its_parent(directory: Path, moment: str) -> None:
    command = [sys.executable, "-c", PARENT, str(directory), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert is_gone(child, within_s=20.0)
