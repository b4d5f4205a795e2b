"""A process that waits for another one's message leaves the cores to it."""

from __future__ import annotations

import subprocess
import sys

from yatt_core.engines.rollout.vllm.environment import engine_environment

WAIT = """
import threading, time
from vllm.distributed.device_communicators import shm_broadcast
from yatt_core.engines.rollout.vllm.queue_waits import sleep_in_waits
sleep_in_waits()
writer = shm_broadcast.MessageQueue(1, 1)
reader = shm_broadcast.MessageQueue.create_from_handle(writer.export_handle(), 0)
ready = threading.Thread(target=reader.wait_until_ready)
ready.start()
writer.wait_until_ready()
ready.join()
for _ in range(2):
    writer.enqueue("now")
    assert reader.dequeue() == "now"
later = threading.Timer(0.8, writer.enqueue, ["later"])
later.start()
before = time.process_time()
assert reader.dequeue() == "later"
print(time.process_time() - before)
"""


def test_a_reader_sleeps_until_its_message_comes() -> None:
    environment = engine_environment(processors=True)
    found = subprocess.run([sys.executable, "-c", WAIT], env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]
    assert float(found.stdout) < 0.4, "of the 0.8 seconds"
