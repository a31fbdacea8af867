"""Which passwords are refused: common ones, and those that are made of names that an attacker knows."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zxcvbn.frequency_lists import FREQUENCY_LISTS

from perdure.core.passwords import own_names, password_weakness
from tests.scale import sized

MARIA = own_names("maria.garcia", "Maria García-Lopez", "acmecorp")


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
