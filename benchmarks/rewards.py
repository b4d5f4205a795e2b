"""What does the guard around reward functions cost per call? Measured for a function that only counts characters.

Consumes nothing. Calls the same function on the same responses directly, in this process under a time limit alone,
and in the reward process, one response and a whole decode batch at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.calls import CallLimits, evaluate
from yatt_core.rewards.conventions import Candidate, RewardFunction, reward_function
from yatt_core.rewards.process import reward_process
from yatt_core.rewards.registry import FunctionName

NAME = "benchmarks.rewards:characters"
LIMITS = CallLimits(seconds=10.0, weight=1.0)
BATCH = 256
CHARACTERS = 2_000
ROUNDS = 5


def characters(prompt: Prompt, response: str) -> float:
    """Returns the number of characters of a response."""
    return float(len(response))


def candidates() -> list[Candidate]:
    """Returns the responses of a decode batch, eight to each prompt."""
    text = "x" * CHARACTERS
    prompts = [
        Prompt(source=0, index=number, prompt_id=f"p{number}", text="question " * 20, answer="answer", entry={})
        for number in range(BATCH // 8)
    ]
    completion = Completion.of_turns(text, [text], CHARACTERS // 4)
    return [Candidate(prompts[number // 8], completion) for number in range(BATCH)]


def microseconds(work: Callable[[], object]) -> float:
    """Returns the time of a call: of several rounds of `BATCH` calls, the fastest."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) / BATCH * 1e6


def main() -> None:
    """Measures all ways to call the function."""
    arguments = argument_parser(__doc__).parse_args()
    load = load_average()
    batch = candidates()
    function: RewardFunction = reward_function(characters, {}, NAME)
    started = time.perf_counter()
    loaded = reward_process().load(FunctionName(NAME, NAME, {}))
    start_seconds = time.perf_counter() - started
    singles: Sequence[list[Candidate]] = [[candidate] for candidate in batch]

    def guarded_one_by_one() -> None:
        for one in singles:
            reward_process().evaluate(loaded, [one], LIMITS, stop=True)

    progress("calling the function")
    baselines = {
        "direct_us": microseconds(lambda: [function(one) for one in singles]),
        "time_limit_us": microseconds(lambda: [evaluate(function, one, LIMITS) for one in singles]),
    }
    figures = {
        "guarded_one_us": microseconds(guarded_one_by_one),
        "guarded_batch_us": microseconds(lambda: reward_process().evaluate(loaded, singles, LIMITS, stop=True)),
        "start_seconds": start_seconds,
    }
    details = {"batch": BATCH, "characters": CHARACTERS}
    loads = (load, load_average())
    print_report(
        Report(name="rewards", figures=figures, seeds=(), load=loads, baselines=baselines, details=details),
        arguments.json,
    )


if __name__ == "__main__":
    main()
