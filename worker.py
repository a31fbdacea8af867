"""The worker process, the same as `python -m perdure.worker`: `--queues turns,llm` serves task queues, `--relay`
delivers."""

from perdure.worker.__main__ import main

if __name__ == "__main__":
    main()
