"""How many connections one API process may hold."""

import resource

from api.__main__ import MOST_FILES, allow_many_connections


def test_a_process_that_may_open_few_files_takes_what_its_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        allow_many_connections()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1] and soft == (MOST_FILES if hard < 0 else min(MOST_FILES, hard))
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
