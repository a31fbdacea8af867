"""`python -m perdure.cli.demo`: exits with 0 only if every claim is true. Nothing is left behind, whatever happens.

`--keep` keeps everything running at the end until Enter is pressed.
"""

import argparse
import asyncio
import os
import signal
import sys

from perdure.cli.demo.demo_stack import DemoFailed, DemoStack, Payments
from perdure.cli.demo.scenarios import Check, Narrator, refund, send_note
from perdure.client import ApiError, AsyncClient
from perdure.local import StackError

_MAX_SECONDS = 300.0
"""The demo takes less than a minute. On a machine that needs this long, it fails with a message."""


def main() -> None:
    """Runs the demo and exits without cleanup, as every process does that may have loaded Temporal's core."""
    parser = argparse.ArgumentParser(prog="make demo", description="Show one turn that survives kill -9.")
    parser.add_argument("--keep", action="store_true", help="keep the stack up at the end until Enter is pressed")
    keep = parser.parse_args().keep
    try:
        code = asyncio.run(_run(keep))
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _run(keep: bool) -> int:
    narrator = Narrator(sys.stdout)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    failure, was_interrupted = "", False
    checks: list[Check] = []
    stack = DemoStack()
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            checks = await _run_demo(stack, narrator)
        if keep and sys.stdin.isatty():
            narrator.say(f"The stack stays up: PERDURE_HOME={stack.home} perdure status. Press Enter to stop it.")
            await asyncio.to_thread(input)
    except (DemoFailed, StackError, ApiError) as error:
        failure = str(error)
    except TimeoutError:
        failure = f"it took longer than {_MAX_SECONDS:.0f} s"
    except asyncio.CancelledError:
        failure, was_interrupted = "it was interrupted", True
    finally:
        has_passed = bool(checks) and all(check.has_passed for check in checks)
        logs_folder = await stack.close(keep_logs=not (has_passed or was_interrupted))
    if failure:
        narrator.failed(f"The demo was aborted: {failure}", logs_folder)
        return 1
    if not has_passed:
        narrator.failed("Some checks failed.", logs_folder)
        return 1
    narrator.say(f"All checks passed after {narrator.seconds:.0f} s. The stack is stopped and its data removed.")
    narrator.say("To look around in the same state: .venv/bin/python -m perdure.cli.demo --keep")
    return 0


async def _run_demo(stack: DemoStack, narrator: Narrator) -> list[Check]:
    narrator.title("Perdure: one turn, killed repeatedly, one effect.")
    narrator.step("A separate stack starts: Postgres, Valkey, Temporal, the API and the workers")
    narrator.say(f"Data in {stack.home}, removed at the end. A local payments service plays the external system.")
    await stack.open()
    narrator.say(f"API {stack.url}   Temporal Web UI {stack.temporal_ui}")
    async with (
        AsyncClient(stack.url, stack.token("requester")) as client,
        Payments(*stack.payments()) as payments,
    ):
        checks = await refund(stack, narrator, client, payments)
        checks += await send_note(stack, narrator, client, payments)
    narrator.step("The result, counted outside Perdure where possible")
    narrator.checks(checks)
    return checks


if __name__ == "__main__":
    main()
