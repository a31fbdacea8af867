"""Keys of access tokens, the setup code, passwords, guessing, newcomers and refreshed tokens."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zxcvbn.frequency_lists import FREQUENCY_LISTS

from perdure.contracts.errors import CallerError
from perdure.core import identity, passwords
from perdure.core.approvals.decisions import USER_NAME
from perdure.core.identity import (
    CODE_BYTES,
    MAX_COUNTED,
    MAX_TRIES,
    AccessKey,
    AccessKeys,
    CodeEnd,
    OperatorTokens,
    RefreshOutcome,
    SetupCode,
    WrongTries,
    code_refusal,
    code_sha256,
    counted_under,
    format_code,
    is_subject,
    seconds_to_wait,
    subject_name,
)
from perdure.core.passwords import ACCOUNT, PLACE, GuessRate, GuessTally, own_names, password_weakness, wait_left
from tests.scale import sized

OLD, NEW = "o" * 40, "n" * 40
TEXT = st.text(max_size=40)
TALLIES = st.builds(GuessTally, st.integers(0, 100), st.floats(0, 1e6))
GOOD = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"
WRONG = GOOD.replace("A", "B")
MARIA = own_names("maria.garcia", "Maria García-Lopez", "acmecorp")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(days=1), NOW - timedelta(days=1)
AGO = st.timedeltas(timedelta(seconds=-30), timedelta(days=30))


@pytest.mark.parametrize("text", ["", "  ", ",", "short", f"{OLD},short", "x" * 31])
def test_guessable_secrets_and_operator_tokens_are_refused(text: str) -> None:
    with pytest.raises(CallerError, match="access_secret_weak"):
        AccessKeys.of(text)
    with pytest.raises(CallerError, match="operator_token_weak"):
        OperatorTokens.of(text)


def test_the_first_key_signs_and_each_is_found_by_its_id_until_it_is_taken_away() -> None:
    keys = AccessKeys.of(f"{NEW}, {OLD}\n")
    assert keys.newest == AccessKey.of(NEW)
    assert keys.find_key(AccessKey.of(OLD).id) == AccessKey.of(OLD)
    assert [keys.find_key(unknown) for unknown in ("", "00000000", None, 7, ["a"])] == [None] * 5
    assert NEW not in repr(keys)
    before = AccessKeys.of(OLD).newest.derive("form token", "s")
    assert keys.verifies(before, "form token", "s") and not AccessKeys.of(NEW).verifies(before, "form token", "s")


@given(TEXT, TEXT, TEXT)
def test_a_derived_key_is_valid_for_its_purpose_only(purpose: str, mine: str, others: str) -> None:
    keys = AccessKeys.of(NEW)
    derived = keys.newest.derive(purpose, mine)
    assert keys.verifies(derived, purpose, mine)
    assert keys.verifies(derived, purpose, others) is (mine == others)
    assert not keys.verifies(derived, purpose + "x", mine)
    assert len(derived) == 43, "256 bits"


def test_an_operators_token_is_known_whole_and_never_kept() -> None:
    tokens = OperatorTokens.of(f"{NEW},{OLD}")
    assert tokens.contains(NEW) and tokens.contains(OLD)
    assert not any(tokens.contains(each) for each in ("", NEW[:-1], NEW + "n", f"{NEW},{OLD}", "\udcff"))
    assert NEW not in repr(tokens) and not OperatorTokens().contains("")


PACES = (passwords.DEVICE, PLACE, ACCOUNT, passwords.ADDRESS)
WAITS = {
    PLACE: {0: 0, 4: 0, 5: 1, 6: 2, 10: 32, 14: 512, 15: 900, 10_000: 900},
    passwords.DEVICE: {5: 1},
    ACCOUNT: {19: 0, 20: 1, 26: 60},
    passwords.ADDRESS: {49: 0, 10**9: 60},
}


@pytest.mark.parametrize("pace", PACES)
def test_each_wrong_guess_doubles_the_wait_up_to_a_maximum(pace: GuessRate) -> None:
    assert {failures: passwords.wait_after(pace, failures) for failures in WAITS[pace]} == WAITS[pace]


@pytest.mark.parametrize(("counted", "now", "seconds"), [
    *(([], 100.0, 0.0), ([(PLACE, GuessTally())], 100.0, 0.0), ([(PLACE, GuessTally(5, 100.0))], 100.0, 1.0)),
    ([(PLACE, GuessTally(5, 100.0))], 100.25, 0.75),
    ([(PLACE, GuessTally(5, 100.0))], 101.0, 0.0),
    ([(PLACE, GuessTally(6, 100.0)), (ACCOUNT, GuessTally(25, 100.0))], 100.0, 32.0),
    ([(PLACE, GuessTally(7, 100.0)), (ACCOUNT, GuessTally(1, 100.0))], 101.0, 3.0),
    ([(PLACE, GuessTally(5, 500.0))], 100.0, 1.0),  # the clock was set back
])  # fmt: skip
def test_the_longest_wait_applies(counted: list[tuple[GuessRate, GuessTally]], now: float, seconds: float) -> None:
    assert wait_left(counted, now) == pytest.approx(seconds)


@given(st.lists(st.tuples(st.sampled_from(PACES), TALLIES), max_size=4), st.floats(0, 2e6))
def test_no_wait_exceeds_its_maximum_and_time_only_shortens_it(counted: list[Any], now: float) -> None:
    wait = wait_left(counted, now)
    assert 0 <= wait <= max((pace.max_seconds for pace, _ in counted), default=0)
    assert wait_left(counted, now + 1) <= wait
    assert wait_left(counted, now + wait + 1_000_000) == 0


@pytest.mark.parametrize(("claims", "name"), [
    ({"preferred_username": "ann", "email": "x@y"}, "ann"), ({"preferred_username": "Ann.Lee@corp.test"}, "ann.lee"),
    ({"preferred_username": "Zoë Müller"}, "zoe-muller"), ({"preferred_username": "../../etc"}, "etc"),
    ({"preferred_username": "42"}, None), ({"preferred_username": "", "email": "bob@corp.test"}, "bob"),
    ({"preferred_username": ["ann"], "sub": "carl"}, "carl"),
    *(({"preferred_username": "李"}, None), ({"preferred_username": "erased-1"}, None)),
    *(({"sub": "a" * 200}, "a" * 63), ({}, None)),
])  # fmt: skip
def test_a_user_name_comes_from_the_first_claim_that_yields_one(claims: dict[str, object], name: str | None) -> None:
    assert identity.name_from(claims) == name


@given(st.dictionaries(st.sampled_from(["preferred_username", "email", "sub"]), st.text() | st.integers()))
def test_any_claims_of_a_provider_yield_a_valid_user_name(claims: dict[str, object]) -> None:
    name = identity.name_from(claims)
    assert name is None or re.fullmatch(r"[a-z][a-z0-9._-]{0,62}", name)


def test_the_display_name_is_shown_if_it_is_safe() -> None:
    shown = [identity.display_name_from({"name": name}) for name in (" Ann  Lee ", "a\u202eb", 7)]
    assert [*shown, identity.display_name_from({})] == ["Ann Lee", "", "", ""]


@pytest.mark.parametrize(("expires_at", "used_ago", "ended", "expected"), [
    (LATER, None, False, RefreshOutcome.ROTATE),
    *((NOW, None, False, RefreshOutcome.OVER), (EARLIER, None, False, RefreshOutcome.OVER),
      (LATER, None, True, RefreshOutcome.OVER)),
    *(
        (LATER, ago, False, RefreshOutcome.REPEAT)
        for ago in (timedelta(0), timedelta(seconds=-1), identity.REFRESH_GRACE)
    ),
    (LATER, identity.REFRESH_GRACE + timedelta(microseconds=1), False, RefreshOutcome.REUSED),
    (EARLIER, timedelta(hours=1), False, RefreshOutcome.REUSED),
    (LATER, timedelta(hours=1), True, RefreshOutcome.OVER),
])  # fmt: skip
def test_a_refresh_token_is_rotated_repeated_or_refused_by_its_age_and_use(
    expires_at: datetime, used_ago: Any, ended: bool, expected: RefreshOutcome
) -> None:
    used_at = None if used_ago is None else NOW - used_ago
    assert identity.refresh_outcome(identity.RefreshRecord(NOW, expires_at, used_at, ended)) is expected


@given(AGO, st.none() | AGO, st.booleans())
def test_only_unused_tokens_of_open_sessions_are_rotated(expired_ago: timedelta, used_ago: Any, ended: bool) -> None:
    facts = identity.RefreshRecord(NOW, NOW - expired_ago, None if used_ago is None else NOW - used_ago, ended)
    found = identity.refresh_outcome(facts)
    assert (found is RefreshOutcome.ROTATE) is (not ended and used_ago is None and expired_ago < timedelta(0))
    if ended:
        assert found is RefreshOutcome.OVER


def setup_code(end: CodeEnd | None = None) -> SetupCode:
    return SetupCode(code_sha256(GOOD), end, None if end is None else NOW)


ENDED = tuple(map(setup_code, CodeEnd))


@pytest.mark.parametrize(("expected", "tries"), [
    (None, [(code, setup_code()) for code in (GOOD.lower(), GOOD.replace("-", " "), f"  {GOOD.replace('-', '')}\n")]),
    ("setup_code_needed", [("", setup_code()), ("  ", setup_code()), ("", None)]),
    ("setup_code_invalid", [(WRONG, setup_code()), (GOOD[:-1], setup_code()), (GOOD, None)]),
    ("setup_code_invalid", [(code, ended) for code in (GOOD, WRONG) for ended in ENDED]),
])  # fmt: skip
def test_a_setup_code_counts_until_it_has_ended(expected: str | None, tries: list[tuple[str, Any]]) -> None:
    http = 401 if expected == "setup_code_needed" else 403
    for code, saved in tries:
        refused = code_refusal(code, saved)
        assert (refused and (refused.code, refused.http)) == (expected and (expected, http))


def test_only_the_holder_of_a_code_learns_why_it_has_ended() -> None:
    def told(code: str, saved: SetupCode) -> tuple[str, object]:
        refused = code_refusal(code, saved)
        assert refused is not None
        return refused.message, refused.details["reason"]

    assert [told(GOOD, ended)[1] for ended in ENDED] == [*CodeEnd]
    wrong = {told(WRONG, saved) for saved in (setup_code(), *ENDED)}
    assert len(wrong) == 1 and len({*wrong, *(told(GOOD, ended) for ended in ENDED)}) == len(ENDED) + 1


@given(st.integers(0, 10_000), st.floats(-1e6, 1e6))
def test_each_tenth_wrong_setup_code_starts_a_longer_wait(number: int, ago: float) -> None:
    wait = seconds_to_wait(number)
    waits = number // MAX_TRIES if number % MAX_TRIES == 0 else 0
    assert wait == (0, 60, 120, 240, 480, 900)[min(waits, 5)]
    refused = WrongTries(number, ago).refusal()
    assert (refused is None) is (wait == 0 or ago >= wait)
    if refused is not None:
        seconds = refused.details["retry_after_seconds"]
        assert (isinstance(seconds, int) and 0 < seconds <= wait and seconds >= wait - ago - 1e-6) or ago < 0


def test_counts_of_wrong_setup_codes_are_bounded_and_kept() -> None:
    counted: set[str] = set()
    for n in range(2 * MAX_COUNTED[-1]):
        counted.add(counted_under((f"{n}", f"net {n // 2}", "*"), counted, len(counted)))
    assert len(counted) == MAX_COUNTED[-1] + 1
    assert counted_under(("0", "net 0", "*"), {"0"}, len(counted)) == "0", "a wait does not end by the tries of others"


@given(st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES), st.binary(min_size=CODE_BYTES, max_size=CODE_BYTES))
def test_a_setup_code_has_eight_groups_of_four_and_encodes_all_its_bits(bits: bytes, others: bytes) -> None:
    assert re.fullmatch(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}", format_code(bits))
    assert (format_code(bits) == format_code(others)) is (bits == others)


@pytest.mark.parametrize("password", [
    "password", "password1", "Passw0rd!", "12345678", "qwertyuiop", "iloveyou", "letmein!!", "abcdefgh", "11111111",
    "aaaaaaaaaaaaaaaaaaaaaaaa", "qwerty12345", "drowssap1", "P@55w0rd", "dragonmonkey", "trustno1",
    "maria.garcia", "MariaGarcia1", "Garcia_Lopez", "maria-acmecorp",
    "garcia2024", "airamgarcia", "m4r1ag4rc1a", "acmecorp", "acmecorp2024!",
    "Maria-Maria", "Perdure-Perdure", "Garcia-Maria-1", "Maria2026Garcia", "m4r14-m4r14",
    "ACMECORP99", "procemca1", "4cm3c0rp!", "acmecorpacmecorp", "perdure1", "Perdure2026", "lopezlopez",
])  # fmt: skip
def test_weak_passwords_are_refused_with_a_reason(password: str) -> None:
    assert password_weakness(password, MARIA)


@pytest.mark.parametrize("password", [
    "correct horse battery", "a new password", "k7#Jq9!xZ2", "пароль для работы", "maria likes 7 green tractors",
    "  spaces around me  ", "🐙🐚🦀🐠🐡🐬🐳🦑", "x7" * 4 + "Tannenbaum-Kiesel",
    "aaaa" * 8 + "but the end is 8xQ!pz/vK",
])  # fmt: skip
def test_strong_passwords_of_any_characters_are_accepted(password: str) -> None:
    assert password_weakness(password, MARIA) is None


@pytest.mark.sized
def test_each_of_the_most_common_passwords_is_refused() -> None:
    common = [word for word in FREQUENCY_LISTS["passwords"] if len(word) >= 8][:3_000]
    assert len(common) == 3_000
    common = common[:: sized(1, 10)]
    assert [word for word in common if password_weakness(word, ()) is None] == []


@pytest.mark.parametrize(
    "password", [pytest.param("4@8({[<36!1|0$57+%2" * 10, marks=pytest.mark.soak), "a4@" * 66, "1|!" * 66, "x" * 200]
)
def test_no_password_takes_long_to_check(password: str) -> None:
    password_weakness("warm up the lists", MARIA)
    began = time.process_time()
    password_weakness(password, MARIA)
    assert time.process_time() - began < 2


@given(st.text(min_size=1, max_size=200))
def test_any_text_can_be_checked_as_a_password(password: str) -> None:
    assert password_weakness(password, MARIA) is None or password_weakness(password, MARIA)


GATEWAYS = st.from_regex(r"[a-z][a-z0-9._-]{0,62}", fullmatch=True)
SUBJECTS = st.text(min_size=1, max_size=200).filter(is_subject)


@given(GATEWAYS, SUBJECTS, GATEWAYS, SUBJECTS)
def test_two_subjects_have_two_names_that_no_user_can_choose(
    gateway: str, subject: str, other_gateway: str, other: str
) -> None:
    name = subject_name(gateway, subject)
    assert len(name) <= 121 and name == subject_name(gateway, subject)
    assert json.dumps(name) == f'"{name}"', "an erasure finds it in JSON text"
    assert not re.fullmatch(USER_NAME, name)
    assert (name == subject_name(other_gateway, other)) == ((gateway, subject) == (other_gateway, other))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True), ("Ünal / 7", True), ("x" * 200, True), ("x" * 201, False), ("", False), (" ", False),
        ("a\nb", False), ("a\u200bb", False), ("a\u0000", False), ("a\u202eb", False),
    ],
)  # fmt: skip
def test_a_subject_can_be_read(text: str, valid: bool) -> None:
    assert is_subject(text) is valid
