from __future__ import annotations

import pytest

from stages.parsers import text

GERMAN = "Eine Datenbankabfrage, die Ergebnisse zurückgegeben hat, über Grüße und Straßen. " * 20
JAPANESE = "その間、コンピュータは「遅いファイル」の読み込みが終わるのを待っています。\n" * 20
CHINESE = "你和你的恋人一起去快餐店，你们排队等候收银员为前面的人点餐。\n" * 20
KOREAN = "데이터베이스 쿼리가 결과를 반환하는 것을 기다리고 있습니다.\n" * 20
RUSSIAN = "возврата результатов запроса к базе данных приходится ждать долго. " * 20


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        (GERMAN, "utf-8"),
        (GERMAN, "utf-8-sig"),
        (GERMAN, "utf-16"),
        (GERMAN, "utf-16-le"),
        (GERMAN, "utf-16-be"),
        (GERMAN, "cp1252"),
        (JAPANESE, "utf-16-le"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (JAPANESE, "iso2022_jp"),
        (CHINESE, "gb18030"),
        (KOREAN, "cp949"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "utf-16-le"),
        (RUSSIAN, "utf-16-be"),
        ("Körper, größer", "cp1252"),
    ],
)
def test_encodings_are_found(words: str, encoding: str) -> None:
    assert text.decode(words.encode(encoding))[0] == words
    assert text.decode_head(words.encode(encoding)) is not None


def test_what_is_declared_counts_where_the_bytes_bear_it_out() -> None:
    assert text.decode("привет".encode("koi8-r"), "koi8-r") == ("привет", "koi8-r")
    assert text.decode(RUSSIAN.encode("cp1251"), "utf-8")[0] == RUSSIAN
    assert text.decode(JAPANESE.encode(), "shift_jis")[0] == JAPANESE
    assert text.decode(GERMAN.encode("cp1252"), "rot13")[0] == GERMAN


def test_a_few_broken_bytes_do_not_change_the_encoding() -> None:
    broken = ("Où êtes-vous allés cet été ? " * 30).encode() + b"\xff\xc3 fin"
    decoded, encoding = text.decode(broken)
    assert encoding == "utf-8"
    assert decoded.startswith("Où êtes-vous")


def test_binary_data_is_no_text() -> None:
    assert text.decode_head(bytes(range(256)) * 50) is None
    assert text.decode_head(b"\x00\x01\x02\x03" * 100) is None


def test_a_few_nul_characters_do_not_make_utf16() -> None:
    assert text.decode(b"one\0two three four five six " * 9)[1] == "utf-8"
    assert text.decode(b"a,b\n1,\x002\n")[1] == "utf-8"


def test_line_ends_and_nul() -> None:
    assert text.plain("a\r\nb\rc\0d\n") == "a\nb\ncd\n"
