"""Roles: what each may do, and the users and tokens that have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import yatt
from db.ledger import Ledger
from flows.run.home import Home
from ops.people.caller import TOKEN_VARIABLE, caller, login_name, of_login
from ops.people.roles import ALLOWED, Permission, Person, Role, least_role, lesser, may
from ops.people.tokens import TokenStore
from ops.people.users import FILE, User, UserStore
from tests.services import ROOT
from yatt.run import Run, operator
from yatt_core.errors import ConfigurationError

QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def test_each_role_includes_the_one_below_it() -> None:
    for below, above in zip(list(Role), list(Role)[1:], strict=False):
        assert ALLOWED[below] < ALLOWED[above]
        assert lesser(below, above) is lesser(above, below) is below
    by_role = [permission for permission in Permission if permission is not Permission.AUTHOR]
    assert [least_role(permission) for permission in by_role] == list(Role)
    assert may(Role.OPERATOR, Permission.OPERATE) and not may(Role.OPERATOR, Permission.APPROVE)


def test_to_author_is_granted_beside_a_role_that_operates(tmp_path: Path) -> None:
    assert {role for role in Role if Permission.AUTHOR in Person("x", role).permissions} == {Role.ADMIN}
    may = {role for role in Role if Permission.AUTHOR in Person("x", role, is_author=True).permissions}
    assert may == {Role.OPERATOR, Role.APPROVER, Role.ADMIN}
    tokens = TokenStore(tmp_path)
    tokens.users.add("bob", Role.OPERATOR)
    own = tokens.create("bob-1", user="bob")
    less = tokens.create("bob-2", Role.VIEWER, user="bob")
    for granted in (True, False):
        tokens.users.set_author("bob", granted)
        for token, expected in ((own, granted), (less, False)):
            person = tokens.person_of(token)
            assert person is not None and (Permission.AUTHOR in person.permissions) is expected
    with pytest.raises(ConfigurationError, match="no user named 'carol'"):
        tokens.users.set_author("carol", True)


def test_a_user_has_one_role_and_is_found_by_login(tmp_path: Path) -> None:
    users = UserStore(tmp_path)
    users.add("alice", Role.APPROVER, ["alice", "asmith"])
    users.add("bob", Role.VIEWER)
    users.set_role("bob", Role.OPERATOR)
    assert [(user.name, user.role, user.logins) for user in users.all()] == [
        ("alice", Role.APPROVER, ("alice", "asmith")),
        ("bob", Role.OPERATOR, ()),
    ]
    for wrong in (
        lambda: users.add("bob", Role.ADMIN),
        lambda: users.add("carol", Role.ADMIN, ["asmith"]),
        lambda: users.add("Carol", Role.ADMIN),
        lambda: users.add("carol", Role.ADMIN, ["a b"]),
        lambda: users.set_role("carol", Role.ADMIN),
        lambda: users.remove("carol"),
    ):
        with pytest.raises(ConfigurationError):
            wrong()
    users.remove("alice")
    assert [user.name for user in users.all()] == ["bob"]


def test_a_file_of_users_that_others_can_change_is_refused(tmp_path: Path) -> None:
    users = UserStore(tmp_path)
    users.add("alice", Role.ADMIN)
    (tmp_path / FILE).chmod(0o664)
    with pytest.raises(ConfigurationError, match=r"0664, which lets other users change it; expected 0644"):
        users.all()


def test_a_token_of_a_user_has_at_most_the_users_role(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    tokens.users.add("alice", Role.OPERATOR)
    strong = tokens.create("a1", Role.ADMIN, user="alice")
    weak = tokens.create("a2", Role.VIEWER, user="alice")
    assert tokens.person_of(strong) == Person("alice", Role.OPERATOR)
    assert tokens.person_of(weak) == Person("alice", Role.VIEWER)
    same = tokens.create("alice", Role.ADMIN)
    assert tokens.person_of(same) == Person("alice", Role.OPERATOR)
    with pytest.raises(ConfigurationError, match="no user named 'bob'"):
        tokens.create("b1", user="bob")
    assert tokens.revoke_all_of("alice") == ("a1", "a2", "alice")
    assert [tokens.person_of(token) for token in (strong, weak, same)] == [None] * 3


def test_a_token_expires(tmp_path: Path) -> None:
    now = [1000.0]
    tokens = TokenStore(tmp_path, lambda: now[0])
    token = tokens.create("ci", lifetime_seconds=60.0)
    assert tokens.person_of(token) == Person("ci", Role.OPERATOR)
    now[0] = 1060.0
    assert tokens.person_of(token) is None


def test_a_token_without_a_role_may_do_what_it_could_before_there_were_roles(tmp_path: Path) -> None:
    tokens = TokenStore(tmp_path)
    token = tokens.create("old")
    path = tmp_path / "tokens.json"
    row = '{{"tokens": [{{"name": "old", "digest": "{}", "created_at": 0}}]}}'
    path.write_text(row.format(tokens.all()[0].digest))
    assert tokens.person_of(token) == Person("old", Role.ADMIN)


def test_a_caller_without_token_and_mapping_may_do_what_the_files_allow(tmp_path: Path) -> None:
    found = caller(tmp_path, {})
    assert found.person.role is Role.ADMIN and not found.is_named
    assert of_login("eve", (User("bob", Role.VIEWER, 0),), owns=False).person == Person("eve", Role.ADMIN)


@pytest.mark.parametrize(
    ("login", "owns", "person"),
    [
        ("bsmith", False, Person("bob", Role.OPERATOR)),
        ("bsmith", True, Person("bob", Role.OPERATOR)),
        ("eve", False, Person("eve", Role.VIEWER)),
        ("root", True, Person("root", Role.ADMIN)),
    ],
)
def test_with_login_names_the_users_role_applies(login: str, owns: bool, person: Person) -> None:
    assert of_login(login, (User("bob", Role.OPERATOR, 0, ("bsmith",)),), owns).person == person


def test_a_token_in_the_environment_says_who_calls(tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create("ci", Role.VIEWER)
    found = caller(tmp_path, {TOKEN_VARIABLE: token})
    assert found.person == Person("ci", Role.VIEWER) and found.is_named
    with pytest.raises(ConfigurationError, match=r"the token in YATT_TOKEN is unknown") as raised:
        caller(tmp_path, {TOKEN_VARIABLE: "yatt_guess"})
    assert "guess" not in str(raised.value)


def test_the_environment_does_not_choose_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert login_name() != "somebody-else"


def test_the_python_api_asks_for_the_role_and_records_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TokenStore(tmp_path)
    monkeypatch.setenv(TOKEN_VARIABLE, tokens.create("looker", Role.VIEWER))
    with Ledger.open(Home(tmp_path).ledger) as ledger:
        run = Run(ledger.runs.create("toy", {}, "d", 3).id, Home(tmp_path))
    refused: tuple[Callable[[], object], ...] = (
        run.stop,
        lambda: run.fork(1),
        lambda: run.rollback(1),
        lambda: yatt.resume(run),
        lambda: yatt.train(QUICKSTART, home=tmp_path),
    )
    for action in refused:
        with pytest.raises(ConfigurationError, match="looker has the role viewer; this needs the role operator"):
            action()
    monkeypatch.setenv(TOKEN_VARIABLE, tokens.create("mover", Role.OPERATOR))
    assert operator(run.home) == "mover"
