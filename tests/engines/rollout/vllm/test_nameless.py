"""What a vLLM process shares with others has no name once all of them have opened it."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from yatt_core.engines.rollout.vllm.nameless import forget_names, shared_files


def test_names_are_removed_and_contents_are_kept(tmp_path: Path) -> None:
    memory = SharedMemory(create=True, size=64)
    other = SharedMemory(create=True, size=64)
    meeting = tmp_path / "meeting"
    name = Path("/dev/shm") / memory.name
    meeting_text = f"file://{meeting}"
    meeting.touch()
    other_name = Path("/dev/shm") / other.name
    other.close()
    assert name in set(shared_files()) and other_name not in set(shared_files())
    forget_names(meeting_text)
    assert not name.exists() and not meeting.exists() and name not in set(shared_files())
    assert other_name.exists(), "it is not this process's any more"
    memory.buf[3] = 7
    assert memory.buf[3] == 7
    forget_names("tcp://127.0.0.1:1")
    other.unlink()
    memory.close()
