"""The learner process: it lives and dies with its parent, and its death is an error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.models import tiny_directory
from tests.processes import is_gone
from trialyard.core.errors import LearnerError
from trialyard.core.learner import TrainingSequence
from trialyard.learning.process import ProcessLearner

SEQUENCE = TrainingSequence(
    (2, 3, 6, 5), (False, False, True, True), (0.0,) * 4, (0.0, 0.0, 1.0, 1.0)
)

PARENT = """
import sys, time
from pathlib import Path
from trialyard.learning.process import ProcessLearner
learner = ProcessLearner(Path(sys.argv[1]))
print(learner.process_id, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("model"))


async def test_a_killed_child_is_a_learner_error(directory: Path) -> None:
    learner = ProcessLearner(directory)
    await learner.weights()
    os.kill(learner.process_id, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(LearnerError, match="SIGKILL"):
            await learner.sft_step([SEQUENCE])
    await learner.close()


async def test_a_child_that_cannot_start_says_why(tmp_path: Path) -> None:
    learner = ProcessLearner(tmp_path / "nothing")
    with pytest.raises(Exception, match=r"config\.json is missing"):
        await learner.weights()
    await learner.close()


async def test_close_ends_the_child(directory: Path) -> None:
    learner = ProcessLearner(directory)
    await learner.weights()
    process = learner.process_id
    await learner.close()
    await learner.close()
    assert is_gone(process, within_s=0.1)
    with pytest.raises(LearnerError, match="closed"):
        await learner.weights()


@pytest.mark.parametrize("ready", [True, False], ids=["idle", "starting"])
def test_the_child_dies_with_its_parent(directory: Path, ready: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(directory)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(3.0 if ready else 0.0)
        parent.kill()
    assert is_gone(child, within_s=20.0)
