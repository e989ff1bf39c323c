"""Named secrets, grants and tokens."""

from __future__ import annotations

import copy
import fnmatch
import hmac
import json
import logging
import re
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import ConfigError, FederationRefused
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import OBJECT_KINDS, VERBS, GrantPattern, Grants, Identity
from busmq_spark.federation.gate.token import MAX_TOKEN_LIFE_S, sign_token, signing_key

SECRET, OTHER = "first-secret-0123456789", "second-secret-0123456789"
FILE = f"""
[reports]
secret = "{SECRET}"
read = ["orders-*", "channel:chat-*"]
write = ["queue:audit"]
deny = ["orders-private-*"]

[operators]
secret = "{OTHER}"
read = ["*"]
write = ["*"]
admin = ["queue:*"]
"""


def written(tmp_path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "secrets.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def rights(identity: Identity, name: str, kind: str = "queue") -> str:
    return " ".join(verb for verb in ("read", "write", "admin") if identity.may(verb, kind, name))


def test_a_secret_gives_what_the_file_grants_it(tmp_path: Path) -> None:
    ring = Keyring.load(written(tmp_path, FILE))
    reports, operators = ring.identify(SECRET), ring.identify(OTHER)
    assert reports is not None
    assert operators is not None
    assert (reports.name, operators.name) == ("reports", "operators")
    assert [
        rights(reports, name)
        for name in ("orders-1", "audit", "orders-private-1", "other", "chat-1")
    ] == ["read", "write", "", "", ""]
    assert [rights(reports, "chat-1", kind) for kind in OBJECT_KINDS] == ["", "read", "", "", ""]
    assert rights(operators, "x") == "read write admin"
    assert rights(operators, "x", "pubsub") == "read write"
    assert [
        ring.identify(text) for text in ("", SECRET + "x", SECRET[:-1], SECRET.upper(), "reports")
    ] == [None] * 5


def test_deny_wins_over_every_verb_and_kind() -> None:
    grants = Grants.parse(
        {"read": ["*"], "write": ["*"], "admin": ["*"], "deny": ["secret-*", "channel:*"]}, "test"
    )
    assert [grants.may(verb, "queue", "secret-1") for verb in VERBS] == [False] * 5
    assert [grants.may(verb, "channel", "open") for verb in VERBS] == [False] * 5
    assert [grants.may(verb, "queue", "open") for verb in VERBS] == [True] * 5


def test_the_queues_inside_channels_and_services_are_theirs_too() -> None:
    grants = Grants.parse(
        {"read": ["*"], "write": ["queue:*"], "deny": ["channel:private", "service:pay"]}, "test"
    )
    somebody, narrowed = Identity("a", grants), Identity("a", Grants.all_allowed(), grants)
    replies = ":replyTo:0123456789abcdef"
    for name in ("channel:any:private", "service:pay", f"service:pay{replies}"):
        assert rights(somebody, name) == rights(narrowed, name) == ""
    for name in (
        "channel:any:open",
        "channel:private",
        "service:sum",
        "service:pay:replyTo:x",
        "channel",
        "service",
    ):
        assert (
            rights(somebody, name)
            == rights(narrowed, name)
            == ("read" if ":" in name else "read write")
        )
    assert rights(somebody, f"service:sum{replies}") == "read"


def test_an_unknown_verb_or_kind_is_not_granted_by_a_star() -> None:
    everything = Grants.all_allowed()
    assert not everything.may("delete", "queue", "x")
    assert not everything.may("read", "disconnect", "x")
    assert all(everything.may(verb, kind, "") for verb in VERBS for kind in OBJECT_KINDS)


@given(st.text("ab:*?[\n", min_size=1, max_size=8), st.text("ab:?[\n", max_size=12))
def test_a_pattern_matches_what_the_shell_would_with_stars_only(pattern: str, name: str) -> None:
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    assert GrantPattern.parse(pattern).matches("queue", name) == fnmatch.fnmatchcase(name, escaped)


def test_a_pattern_full_of_stars_costs_no_more_than_the_name_is_long() -> None:
    name = "a" * 1_000_000
    assert not GrantPattern.parse("*".join("a" * 200) + "b").matches("queue", name)
    assert GrantPattern.parse("*".join("a" * 200)).matches("queue", name)


def test_a_kind_stands_before_a_colon_and_other_colons_are_part_of_the_name() -> None:
    assert GrantPattern.parse("eu:orders").matches("channel", "eu:orders")
    assert GrantPattern.parse("queue:queue:x").matches("queue", "queue:x")
    assert not GrantPattern.parse("queue:x").matches("channel", "queue:x")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "names no secret"),
        ("[a]\nread=['*']", "secret is missing"),
        ("[a]\nsecret=3\nread=['*']", "secret is no text"),
        ("[a]\nsecret='hunter2'\nread=['*']", "7 characters long; expected at least 16"),
        ("[a]\nsecret=''\nread=['*']", "is empty"),
        (f"[a]\nsecret='{SECRET}'", "may do nothing"),
        (f"[a]\nsecret='{SECRET}'\nraed=['*']", "did you mean 'read'"),
        (f"[a]\nsecret='{SECRET}'\nread='*'", "read is not a list"),
        (f"[a]\nsecret='{SECRET}'\nread=[1]", "read is not a list"),
        (f"[a]\nsecret='{SECRET}'\nread=['']", "names nothing"),
        (f"[a]\nsecret='{SECRET}'\nread=['*']\ndeny=['queues:x']", "did you mean 'queue:'"),
        (f"[a]\nsecret='{SECRET}'\nread=['*']\n[b]\nsecret='{SECRET}'\nread=['*']", "are equal"),
        (f"['a b']\nsecret='{SECRET}'\nread=['*']", "is called 'a b'"),
        (f"secret='{SECRET}'", "is not a table"),
        (f"[a]\nsecret='{SECRET}", "is not TOML"),
        (f"[a]\nsecret={SECRET}", "is not TOML"),
        (b"[a]\nsecret='first-secret-\xff'", "is not UTF-8"),
        ("#" * 1_100_000, "longer than"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_is_wrong_says_what_and_shows_no_secret(
    tmp_path: Path, text: str | bytes, found: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(found)) as caught:
        Keyring.load(written(tmp_path, text))
    assert not re.search("first-secret|hunter2", str(caught.value) + repr(caught.value.details))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o777])
def test_a_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, FILE, mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}.*chmod o-rwx"):
        Keyring.load(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_file_for_its_owner_and_group_is_taken(tmp_path: Path, mode: int) -> None:
    assert Keyring.load(written(tmp_path, FILE, mode)).names == ("reports", "operators")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Keyring.load(tmp_path / "none.toml")
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Keyring.load(tmp_path)


def test_there_is_no_keyring_without_a_secret() -> None:
    with pytest.raises(ConfigError, match="no default"):
        Keyring({})
    with pytest.raises(ConfigError, match="11 characters"):
        Keyring.single("notsosecret")


def test_a_secret_that_npm_clients_would_garble_is_warned_about_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    Keyring.single("first-secret-with+plus", name="shop")
    assert "'shop'" in caplog.text
    assert "first-secret" not in caplog.text


def test_every_secret_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring({name: (f"{name}-0123456789abcdef", Grants.all_allowed()) for name in "abc"})
    compared: list[tuple[int, int]] = []
    genuine = hmac.compare_digest

    def counting(one: bytes, two: bytes) -> bool:
        compared.append((len(one), len(two)))
        return genuine(one, two)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for text in ("a-0123456789abcdef", "c-0123456789abcdef", "x", ""):
        compared.clear()
        ring.identify(text)
        assert compared == [(32, 32)] * 3
        compared.clear()
        ring.identify_token(ring.sign("a", 60))
        assert compared == [(43, 43)] * 3


def test_no_repr_shows_a_secret() -> None:
    ring = Keyring.single(SECRET)
    token = ring.sign("all", 60)
    shown = (
        " ".join(
            map(
                repr,
                [
                    ring,
                    ring.identify(SECRET),
                    ring.identify_token(token),
                    ring._keys,
                    copy.copy(ring),
                ],
            )
        )
        + str(ring)
        + f"{ring}"
    )
    assert SECRET not in shown
    assert sha256(SECRET.encode()).hexdigest() not in shown
    assert repr(sha256(SECRET.encode()).digest()) not in shown


def claim_of(secret: str, claim: object, head: str = "bt1") -> str:
    body = claim if isinstance(claim, bytes) else json.dumps(claim).encode()
    signed_part = f"{head}.{urlsafe_b64encode(body).rstrip(b'=').decode()}"
    mac = hmac.digest(signing_key(secret), signed_part.encode(), sha256)
    return f"{signed_part}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_counts_until_its_end() -> None:
    clock = Clock()
    ring = Keyring(
        {"a": (SECRET, Grants.all_allowed()), "b": (OTHER, Grants.all_allowed())}, clock=clock
    )
    token = ring.sign("b", 60)
    found = ring.identify_token(token)
    assert found is not None
    assert (found.name, found.expires) == ("b", clock.now + 60)
    clock.now += 59.9
    assert ring.identify_either(token) is not None
    clock.now += 0.1
    assert ring.identify_either(token) is None
    assert ring.identify(token) is None


def test_a_token_ends_with_its_secret_and_is_worth_nothing_elsewhere() -> None:
    token = Keyring.single(SECRET).sign("all", 60)
    assert Keyring.single(OTHER).identify_token(token) is None
    assert Keyring.single(SECRET, name="renamed").identify_token(token) is None


def test_a_token_can_only_narrow_what_its_secret_may() -> None:
    ring = Keyring(
        {
            "a": (
                SECRET,
                Grants.parse(
                    {"read": ["orders-*"], "write": ["orders-*"], "deny": ["orders-x"]}, "test"
                ),
            )
        }
    )
    narrow = ring.identify_token(
        ring.sign("a", 60, {"read": ["*"], "admin": ["*"], "deny": ["orders-1"]})
    )
    assert narrow is not None
    assert [rights(narrow, name) for name in ("orders-1", "orders-2", "orders-x", "other")] == [
        "",
        "read",
        "",
        "",
    ]
    nothing = ring.identify_token(ring.sign("a", 60, {}))
    assert nothing is not None
    assert rights(nothing, "orders-2") == ""


@pytest.mark.parametrize(
    "claim",
    [
        {},
        [],
        None,
        3,
        {"n": "all"},
        {"n": "all", "e": "2000000"},
        {"n": "all", "e": True},
        {"n": "all", "e": 1e9},
        {"n": "all", "e": 10**400},
        {"n": "all", "e": 1_000_000 + MAX_TOKEN_LIFE_S + 3600},
        {"n": "other", "e": 1_000_100},
        {"n": ["all"], "e": 1_000_100},
        {"n": "all", "e": 1_000_100, "g": 3},
        {"n": "all", "e": 1_000_100, "g": {"raed": ["*"]}},
        {"n": "all", "e": 1_000_100, "g": {"read": "*"}},
        b"[" * 2000,
        b"\xff",
        b"{",
    ],
    ids=lambda claim: str(claim)[:40],
)
def test_a_claim_that_makes_no_sense_is_refused_though_it_is_signed(claim: object) -> None:
    ring = Keyring({"all": (SECRET, Grants.all_allowed())}, clock=Clock())
    assert ring.identify_token(claim_of(SECRET, {"n": "all", "e": 1_000_100})) is not None
    assert ring.identify_token(claim_of(SECRET, claim)) is None


def test_a_token_of_another_version_is_refused() -> None:
    ring = Keyring({"all": (SECRET, Grants.all_allowed())}, clock=Clock())
    assert ring.identify_token(claim_of(SECRET, {"n": "all", "e": 1_000_100}, head="bt2")) is None


@given(st.data())
def test_a_token_changed_anywhere_is_refused(data: st.DataObject) -> None:
    ring = Keyring.single(SECRET)
    token = ring.sign("all", 600, {"read": ["*"]})
    at = data.draw(st.integers(0, len(token) - 1))
    char = data.draw(st.characters(codec="latin-1").filter(lambda char: char != token[at]))
    # The last character of a mac carries four bits only; what stays the same mac is compared as
    # text, and refused too.
    assert ring.identify_token(token[:at] + char + token[at + 1 :]) is None
    assert ring.identify_token(token[:at]) is None


@given(st.text())
def test_any_text_is_taken_and_refused(text: str) -> None:
    assert Keyring.single(SECRET).identify_either(text) is None


@pytest.mark.parametrize(
    ("name", "expires_s", "narrow"),
    [
        ("nobody", 60, None),
        ("all", 0, None),
        ("all", MAX_TOKEN_LIFE_S + 1, None),
        ("all", float("nan"), None),
        ("all", 60, {"raed": []}),
        ("all", 60, {"read": ["x" * 5000]}),
    ],
)
def test_a_token_that_makes_no_sense_is_not_signed(
    name: str, expires_s: float, narrow: dict[str, list[str]] | None
) -> None:
    with pytest.raises(ConfigError):
        Keyring.single(SECRET).sign(name, expires_s, narrow)


def test_the_bytes_of_a_token_stay_what_they_are() -> None:
    assert (
        sign_token("all", signing_key(SECRET), 1_000_000, 60, {"read": ["orders-*"]})
        == GOLDEN_TOKEN
    )


GOLDEN_TOKEN = "bt1.eyJuIjoiYWxsIiwiZSI6MTAwMDA2MCwiZyI6eyJyZWFkIjpbIm9yZGVycy0qIl19fQ.CAIYYEIkqTd7P55nWZDr86Ry5wzQdqoSkI-2arS6KHM"  # noqa: E501


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_must_allow_something(value: float) -> None:
    with pytest.raises(ConfigError, match=r"limit send_s .*not one byte"):
        PeerLimits(send_s=value)


def test_old_settings_are_sets_of_verbs_and_each_verb_can_be_granted_alone() -> None:
    table = {
        "read": ["a"],
        "write": ["b"],
        "browse": ["c"],
        "consume": ["d"],
        "push": ["e"],
        "create": ["f"],
        "admin": ["g"],
    }
    grants = Grants.parse(table, "test")
    found = {
        name: " ".join(verb for verb in VERBS if grants.may(verb, "queue", name))
        for name in "abcdefg"
    }
    assert found == {
        "a": "browse consume",
        "b": "push create",
        "c": "browse",
        "d": "consume",
        "e": "push",
        "f": "create",
        "g": "admin",
    }


def test_sinks_and_subscriptions_are_left_to_what_patterns_of_their_kind_name() -> None:
    open_, named = (
        Grants.parse({"read": ["*"], "write": ["q"]}, "test"),
        Grants.parse({"consume": ["q", "subscription:a*"], "push": ["sink:a"]}, "test"),
    )
    denied = Grants.parse({"write": ["*"], "deny": ["sink:a", "subscription:a"]}, "test")
    assert [
        [Identity("x", grants).may("push", "sink", name) for name in "ab"]
        for grants in (open_, named, denied)
    ] == [
        [True, True],
        [True, False],
        [False, True],
    ]
    assert [
        [Identity("x", grants).may("consume", "subscription", name) for name in "ab"]
        for grants in (open_, named, denied)
    ] == [
        [True, True],
        [True, False],
        [False, False],
    ]
    assert not Identity("x", Grants.parse({"write": ["channel:*"]}, "test")).may(
        "push", "sink", "a"
    )


def test_what_names_no_object_is_refused() -> None:
    with pytest.raises(FederationRefused, match="names no object"):
        Identity("x", Grants.all_allowed()).require_rights([])


def test_a_name_has_two_secrets_during_a_rotation(tmp_path: Path) -> None:
    old, new = SECRET, OTHER
    before = Keyring.load(written(tmp_path, f'[app]\nsecret = "{old}"\nread = ["*"]\n'))
    both = Keyring.load(written(tmp_path, f'[app]\nsecret = ["{new}", "{old}"]\nread = ["*"]\n'))
    after = Keyring.load(written(tmp_path, f'[app]\nsecret = "{new}"\nread = ["*"]\n'))
    assert both.names == ("app",)
    peer, signed = before.identify(old), before.sign("app", 60)
    assert peer is not None
    assert [ring.holds(peer) for ring in (before, both, after)] == [True, True, False]
    assert [ring.identify_token(signed) is not None for ring in (both, after)] == [True, False]
    assert after.identify_token(both.sign("app", 60)) is not None, "the first one signs"
    bearer = both.identify_token(signed)
    assert bearer is not None
    assert not after.holds(bearer)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, "has no file 'app'"),
        ({"app": SECRET, "other": OTHER}, "a file 'other' whose name has no table"),
        ({"app": SECRET, "app.previous": SECRET}, "are equal"),
        ({"app": "short"}, "characters long"),
        ({"app": f"{SECRET}\n\n"}, "line break"),
        ({"app": ""}, "empty"),
    ],
)
def test_a_folder_of_secrets_that_is_wrong_says_what_and_shows_no_secret(
    tmp_path: Path, files: dict[str, str], found: str
) -> None:
    rights = written(tmp_path, '[app]\nread = ["*"]\n', 0o644)
    (folder := tmp_path / "folder").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o440)
    with pytest.raises(ConfigError, match=re.escape(found)) as caught:
        Keyring.load(rights, folder)
    assert not re.search("first-secret|second-secret", str(caught.value))
    (folder / "..data").symlink_to("..data")
    with pytest.raises(ConfigError):
        Keyring.load(rights, folder)
