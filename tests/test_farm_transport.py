# SPDX-License-Identifier: GPL-2.0-or-later
"""Who may connect, what is sent, and what Slurm is told."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.util
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from multiprocessing.context import ForkProcess
from pathlib import Path
from queue import Queue
from typing import Any
from unittest import mock

import fsspec
import psutil
import pytest

from fakeworld import World, write
from farms import Crowd, crowd, until
from faulty import require_proven
from kstall import cli, farm
from kstall.base import KstallError, arch, cache, elsewhere
from kstall.base.errors import NotJudged
from kstall.farm import transport, worker
from kstall.farm.client import _Job, _lacks
from kstall.farm.line import Ticket, TicketQueue
from kstall.guest import guest, guestrun
from kstall.pipeline import units

_LOOPBACK = ("127.0.0.1", "::1")
_SLURM = ("sbatch", "scancel")

# -- who may connect -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://192.0.2.1:8786", "is not this machine"),
        ("tls://192.0.2.1:8786", "asks for certificates"),
        ("127.0.0.1:8786", "is not an address of a scheduler"),
        ("http://127.0.0.1:8786", "is not an address of a scheduler"),
        ("tcp://127.0.0.1:many", "Port could not be cast"),
        ("tcp://127.0.0.1", "tcp://127.0.0.1: there is no port"),
        ("tcp://nowhere.invalid:1", "nowhere.invalid"),
    ],
)
def test_addresses_that_are_refused(address: str, says: str) -> None:
    with pytest.raises(KstallError, match=says):
        farm.require_private(address, None)


def test_address_is_refused_before_a_store_is_missed(tmp_path: Path) -> None:
    for address, says in (
        ("127.0.0.1:8786", "is not an address of a scheduler"),
        ("tls://192.0.2.1:8786", "asks for certificates"),
    ):
        where = farm.Where(on=address)
        with (
            pytest.raises(KstallError, match=says),
            farm.opened(where, farm.Shelf(tmp_path), tmp_path, print),
        ):
            pass
    where = farm.Where(on="slurm:cores=1,memory=1GB")
    with (
        pytest.raises(KstallError, match="its workers need a store"),
        farm.opened(where, farm.Shelf(tmp_path), tmp_path, print),
    ):
        pass


def test_loopback_needs_no_certificates() -> None:
    for address in ("tcp://127.0.0.1:8786", "tcp://[::1]:8786", "tcp://localhost:1"):
        assert farm.require_private(address, None) is None


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    tls = farm.Tls(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")
    with pytest.raises(KstallError, match="ca: there is no such file"):
        farm.require_private("tls://127.0.0.1:1", tls)


def test_certificates_that_are_damaged(tmp_path: Path) -> None:
    """The file is named, before anything is begun."""
    _certificates(tmp_path, "machine", "ca")
    _certificates(tmp_path, "stranger", "other")
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "machine.pem", "other.key"))
    with pytest.raises(KstallError, match=r"other\.key has no key .*machine\.pem: "):
        farm.Tls(ca, cert, key).security()
    key = tmp_path / "machine.key"
    farm.Tls(ca, cert, key).security()
    text = key.read_text()
    key.write_text(text.replace("MI", "??", 1))
    with pytest.raises(KstallError, match=r"machine\.key has no key in PEM that bel"):
        farm.Tls(ca, cert, key).security()
    broken = tmp_path / "broken"
    broken.write_text("broken")
    for files in ((broken, cert, key), (ca, broken, key)):
        with pytest.raises(KstallError, match="broken has no certificate in PEM"):
            farm.Tls(*files).security()


def test_worker_without_a_scheduler_says_why(tmp_path: Path) -> None:
    world = World(tmp_path / "world", level="quick")
    for address, says in (
        ("tcp://127.0.0.1", "tcp://127.0.0.1: there is no port"),
        ("tcp://127.0.0.1:9", "Connection refused"),
    ):
        ran = world.run("worker", address, "--name", "w", "--death-timeout", "1")
        assert ran.exit_code == 2 and says in ran.output, ran.output
        assert "Traceback" not in ran.output


@pytest.mark.parametrize("text", ["-1", "0", "nan", "inf"])
def test_worker_with_no_time_to_wait(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["worker", "tcp://127.0.0.1:9", f"--death-timeout={text}"]
    with pytest.raises(SystemExit) as ended:
        cli.parser().parse_args(words)
    assert ended.value.code == 2
    assert f"argument --death-timeout: {text}: not a time" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../x", "a/b", ".", "", "-a", "a b", "a:b"])
def test_worker_whose_name_is_no_directory(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cache is below workers/, and a part of paths that make takes."""
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["worker", "tcp://127.0.0.1:9", f"--name={name}"])
    assert f"argument --name: {name!r}: not a name of " in capsys.readouterr().err


def test_scheduler_listens_to_this_machine_only(tmp_path: Path) -> None:
    with pytest.raises(KstallError, match="executes what it is sent"):
        farm.scheduler("0.0.0.0", 0, None, print)


def _certificates(place: Path, name: str, ca: str) -> list[str]:
    """What docs/workers.md says, for a party called ``name``."""
    run = {"cwd": place, "check": True, "capture_output": True}
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    if not (place / f"{ca}.pem").exists():
        subject = ["-subj", f"/CN={ca}", "-days", "9"]
        outputs = ["-keyout", f"{ca}.key", "-out", f"{ca}.pem"]
        subprocess.run(["openssl", "req", "-x509", *key, *subject, *outputs], **run)  # type: ignore[call-overload]
    signed = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-days", "9"]
    outputs = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
    subprocess.run(["openssl", "req", "-x509", *key, *signed, *outputs], **run)  # type: ignore[call-overload]
    return [
        *("--tls-ca-file", str(place / f"{ca}.pem")),
        *("--tls-cert", str(place / f"{name}.pem")),
        *("--tls-key", str(place / f"{name}.key")),
    ]


def _outside(workers: Crowd) -> list[str]:
    """Where others than this machine could connect."""
    addresses = []
    for child in (workers.scheduler, *workers.workers.values()):
        assert child is not None
        for connection in psutil.Process(child.pid).net_connections("inet"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr.ip not in _LOOPBACK
            ):
                addresses.append(f"{connection.laddr.ip}:{connection.laddr.port}")
    return addresses


def test_nobody_else_can_connect(tmp_path: Path) -> None:
    with crowd(World(tmp_path / "world"), "one") as workers:
        workers.hire("local", "--host", "127.0.0.1")
        workers.hire("open", "--host", "0.0.0.0")
        workers.gather()
        # It is refused, as it has no certificates.
        refused = workers.workers.pop("open")
        refused.join(60)
        assert refused.exitcode == 2
        assert "--host 0.0.0.0 is not this machine" in workers.output(refused)
        assert _outside(workers) == []


def test_processors_of_a_worker(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    with crowd(World(tmp_path / "world")) as workers:
        one = workers.hire("one", "--cpus", f"{first}-{first}")
        lost = workers.hire("lost", "--cpus", "99999")
        workers.gather()
        assert "one: 2 slots on 1 processors" in workers.output(one)
        lost.join(60)
        assert lost.exitcode == 2
        said = workers.output(lost)
        assert "--cpus: not processors of this machine: 99999" in said, said
        assert "Traceback" not in said


def test_cache_of_a_worker_is_that_of_the_one_before(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    places = world.cache / "workers"
    host = platform.node()
    with crowd(world) as workers:

        def begin() -> ForkProcess:
            child = workers.start("worker", workers.address)
            # For the end of the test.
            workers.workers[str(child.pid)] = child
            workers.gather()
            return child

        first, second = begin(), begin()
        assert f"{host} works for" in workers.output(first)
        assert f"{host}-2 works for" in workers.output(second)
        workers.kill(first)
        left = places / host / "trees/.demo.tmp-left"
        left.mkdir(parents=True)
        third = begin()
        assert f"{host} works for" in workers.output(third)
    assert not left.exists()
    assert sorted(path.name for path in places.iterdir()) == [host, f"{host}-2"]


def test_certificates(tmp_path: Path) -> None:
    world = World(tmp_path / "world", level="quick")
    mine = _certificates(tmp_path, "machine", "ca")
    with crowd(world, tls=mine) as workers:
        assert workers.address.startswith("tls://")
        assert workers.scheduler is not None
        remark = "only this machine can connect to it: 127.0.0.1 is its loopback"
        until("the remark", lambda: remark in workers.output(workers.scheduler))
        workers.hire("one", *mine)
        workers.gather()
        require_proven(workers.validate(*mine))
        assert _outside(workers) == []
        # One whom somebody else has signed hears nothing.
        strange = _certificates(tmp_path, "stranger", "other")
        ran = workers.validate(*strange)
        assert ran.exit_code == 2, ran.output
        assert "no scheduler answers at tls://" in ran.output
        ran = workers.validate()
        assert ran.exit_code == 2 and "asks for certificates" in ran.output


def test_certificates_of_one_run(tmp_path: Path) -> None:
    with transport.written(transport.temporary_certificates()) as tls:
        for path in (tls.ca, tls.cert, tls.key):
            assert path.stat().st_mode & 0o77 == 0
        assert tls.cert.parent.stat().st_mode & 0o77 == 0
        require = transport.require_private("tls://127.0.0.1:1", tls)
        assert require is not None and require.require_encryption
    assert not tls.key.exists()


def test_certificates_of_one_run_without_cryptography(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(KstallError, match="workers need cryptography") as info:
        transport.temporary_certificates()
    assert info.value.next == "in a checkout, pip install '.[workers]'"


def test_scheduler_that_others_can_connect_to(tmp_path: Path) -> None:
    tls = _certificates(tmp_path, "machine", "ca")
    with crowd(World(tmp_path / "world")) as workers:
        others = workers.start("scheduler", "--host", "0.0.0.0", "--port", "0", *tls)
        workers.workers["others"] = others
        until("it listens", lambda: "scheduler at tls" in workers.output(others))
        # That is so without certificates in any case, and wanted.
        assert workers.scheduler is not None
        time.sleep(0.5)
        for child in (others, workers.scheduler):
            assert "only this machine" not in workers.output(child)


# -- what is sent --------------------------------------------------------------------


def _entry(place: Path) -> Path:
    with cache.keep(place) as scratch:
        (scratch / "a").write_text("text")
        (scratch / "link").symlink_to("/etc/nowhere")
        (scratch / "tool").write_text("#!/bin/sh\n")
        (scratch / "tool").chmod(0o755)
    return place


@pytest.mark.parametrize("zstd", [True, False])
def test_entry_there_and_back(
    tmp_path: Path, zstd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not zstd:
        monkeypatch.setattr(
            "shutil.which", lambda name: None if name == "zstd" else "x"
        )
    store = farm.Store(str(tmp_path / "store"))
    here, there = (farm.Shelf(tmp_path / name) for name in ("here", "there"))
    _entry(here.cache / "kernels/abc")
    sent = here.publish(store, "kernels/abc")
    assert sent.form == ("zst" if zstd else "gz")
    # What is there is not sent again.
    assert here.publish(store, "kernels/abc") == sent
    assert there.bring(store, "kernels/abc", sent)
    assert not there.bring(store, "kernels/abc", sent)
    got = there.cache / "kernels/abc"
    assert (got / "link").readlink() == Path("/etc/nowhere")
    assert os.access(got / "tool", os.X_OK) and cache.is_complete(got)


def test_archive_of_another_entry_is_not_taken(tmp_path: Path) -> None:
    store = farm.Store(str(tmp_path / "store"))
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose/kernel.json").write_text("{}")
    _entry(tmp_path / "here/kernels/abc")
    (tmp_path / "here/kernels/abc/a").write_text("other")
    sent = store.put(tmp_path / "here/kernels/abc", ["a", "link", cache.LIST])
    shelf = farm.Shelf(tmp_path / "there")
    with pytest.raises(farm.Damaged, match="is no such entry"):
        shelf.bring(store, "kernels/abc", sent)
    assert not (shelf.cache / "kernels/abc").exists()


def _tree(place: Path) -> list[str]:
    """A copy of sources that was last used long ago, and the names to send."""
    (place / "src").mkdir(parents=True)
    (place / "src/Makefile").write_text(f"# {place.name}\n")
    (place / "files").write_text("")
    (place / "base.json").write_text('{"version": "7.3"}')
    os.utime(place / "base.json", (int(place.name), int(place.name)))
    return ["src", "files", "base.json"]


def test_trees_and_roots_make_room_for_others(tmp_path: Path) -> None:
    store = farm.Store(str(tmp_path / "store"))
    shelf = farm.Shelf(tmp_path / "there", units.KINDS)
    sent: dict[str, farm.Artifact] = {}
    for name in map(str, range(1, 9)):
        tree = tmp_path / "here" / name
        sent[f"trees/{name}"] = store.put(tree, _tree(tree))
        root = _entry(tmp_path / "here/roots" / name)
        names = [path.name for path in root.iterdir()]
        sent[f"roots/{name}"] = store.put(root, names)

    def left(kind: str) -> list[str]:
        return sorted(path.name for path in (shelf.cache / kind).glob("[!.]*"))

    # A unit needs them all the time, which others may not notice.
    needed = {name: sent[name] for name in ("trees/1", "roots/1")}
    with shelf.borrowed(store, needed):
        os.utime(shelf.cache / "roots/1", (1, 1))
        for name, artifact in sent.items():
            assert shelf.bring(store, name, artifact) is (name not in needed)
        assert left("trees") == ["1", "6", "7", "8"]
        assert left("roots") == ["1", "5", "6", "7", "8"]
    # What killed workers left goes, too.
    (shelf.cache / "trees/.removed-2/src").mkdir(parents=True)
    shelf.bring(store, "trees/2", sent["trees/2"])
    assert left("trees") == ["2", "6", "7", "8"]
    assert not list((shelf.cache / "trees").glob(".removed-*"))


def test_what_a_worker_compiles_makes_room_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_COMPILED", 2)

    def compiles(
        cache_dir: Path, out: Path, spec: Mapping[str, Any]
    ) -> elsewhere.WorkerResult:
        names = tuple(f"compiled/{name}" for name in spec["keys"])
        for time_, name in enumerate(names):
            os.utime(_entry(cache_dir / name), (time_, time_))
        return elsewhere.WorkerResult(entries=names, new_entries=names)

    there = farm.Shelf(tmp_path / "there")
    there.cache.mkdir()
    context = contextvars.copy_context()
    bench = worker._Bench("one", there, {"compile": compiles}, None, context)
    answer = bench.perform(
        {
            "kind": "compile",
            "key": "k",
            "spec": {"keys": ["a", "b", "c"]},
            "entries": {},
            "store": str(tmp_path / "store"),
            "fresh": False,
            "kstall": worker.version(),
        }
    )
    # All were sent first.
    assert sorted(answer["entries"]) == ["compiled/a", "compiled/b", "compiled/c"]
    left = sorted(path.name for path in (there.cache / "compiled").glob("[!.]*"))
    assert left == ["b", "c"]


def test_entry_that_makes_room_before_it_is_held_is_brought_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = farm.Store(str(tmp_path / "store"))
    here, there = (farm.Shelf(tmp_path / name) for name in ("here", "there"))
    _entry(here.cache / "kernels/abc")
    sent = here.publish(store, "kernels/abc")
    held = cache.held
    calls = []

    def late(entry: Path) -> AbstractContextManager[None]:
        # A lease of `cache.publish` is one of another name.
        if entry == there.cache / "kernels/abc":
            calls.append(entry)
            if len(calls) == 1:
                cache.prune(entry.parent, keep=0)
        return held(entry)

    monkeypatch.setattr(cache, "held", late)
    with there.borrowed(store, {"kernels/abc": sent}):
        cache.prune(there.cache / "kernels", keep=0)
        assert there.is_complete("kernels/abc") and len(calls) == 2


@contextlib.contextmanager
def _sftp(place: Path) -> Iterator[str]:
    """A server on loopback, which accepts the one key."""
    asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    pytest.importorskip("sshfs", reason="sshfs is not installed")
    key = asyncssh.generate_private_key("ssh-ed25519")
    ready: Queue[Any] = Queue()

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[key],
            authorized_client_keys=asyncssh.import_authorized_keys(
                key.export_public_key().decode()
            ),
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=place),
        )
        ended = asyncio.Event()
        ready.put((server.get_port(), asyncio.get_running_loop(), ended))
        await ended.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, loop, ended = ready.get()
    try:
        with _settings("sftp", username="kstall", client_keys=[key], known_hosts=None):
            yield f"sftp://127.0.0.1:{port}/store"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@contextlib.contextmanager
def _s3(place: Path) -> Iterator[str]:
    """Moto's server on loopback, with a bucket."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with _settings("s3", key="k", secret="s", endpoint_url=f"http://{host}:{port}"):
            fsspec.filesystem("s3").mkdir("bucket")
            yield "s3://bucket/store"
    finally:
        server.stop()


@contextlib.contextmanager
def _settings(protocol: str, **words: Any) -> Iterator[None]:
    """Credentials of a protocol, which fsspec else has from its configuration."""
    fsspec.config.conf[protocol] = words
    try:
        yield
    finally:
        del fsspec.config.conf[protocol]


@contextlib.contextmanager
def _memory(place: Path) -> Iterator[str]:
    yield f"memory://{place.name}"


def test_a_store_over_sftp_is_tested_everywhere() -> None:
    """Where what it takes is missing, its tests are skipped, and nobody notices."""
    assert importlib.util.find_spec("sshfs") is not None


@pytest.mark.parametrize("opened", [_memory, _sftp, _s3])
def test_store_elsewhere(
    tmp_path: Path, opened: Callable[[Path], AbstractContextManager[str]]
) -> None:
    """Whatever fsspec can write to will do."""
    (tmp_path / "server").mkdir()
    with opened(tmp_path / "server") as url:
        store = farm.Store(url)
        store.probe()
        _entry(tmp_path / "kernels/abc")
        shelf = farm.Shelf(tmp_path)
        sent = shelf.publish(store, "kernels/abc")
        assert store.entry("kernels/abc") == sent
        there = farm.Shelf(tmp_path / "there")
        assert there.bring(farm.Store(url), "kernels/abc", sent)
        # The same again, in the place of the first.
        for value in (1, 2):
            store.note("units/guest/abc", {"x": value})
            assert store.noted("units/guest/abc") == {"x": value}
        store.forget("units/guest/abc")
        assert store.noted("units/guest/abc") is None
        assert store.entry("kernels/none") is None
        # What is damaged is noticed, and gone.
        fs, top = fsspec.core.url_to_fs(url)
        fs.pipe_file(f"{top}/{sent.path}", bytes(sent.size))
        with pytest.raises(farm.Damaged, match="is not what it was"):
            store.get(sent, tmp_path / "damaged")
        assert not store.has(sent)


def test_old_archives_make_room(tmp_path: Path) -> None:
    store = farm.Store(str(tmp_path / "store"))
    _entry(tmp_path / "kernels/abc")
    farm.Shelf(tmp_path).publish(store, "kernels/abc")
    store.prune()
    assert store.entry("kernels/abc") is not None
    (archive,) = (tmp_path / "store/objects").iterdir()
    os.utime(archive, (0, 0))
    store.prune()
    assert store.entry("kernels/abc") is None


def test_archives_in_use_stay(tmp_path: Path) -> None:
    """A run in progress may need them, though another run wrote them long ago."""
    top = tmp_path / "store"
    store = farm.Store(str(top))
    _entry(tmp_path / "kernels/abc")
    shelf = farm.Shelf(tmp_path)
    sent = shelf.publish(store, "kernels/abc")
    answer = {"entries": {"kernels/abc": asdict(sent)}, "files": None, "told": {}}
    note = "units/kernels/abc"
    store.note(note, answer)
    for use, left in (
        (lambda: shelf.publish(store, "kernels/abc"), {"objects", "entries"}),
        (lambda: worker.noted_answer(store, note), {"objects", "units"}),
    ):
        shelf.publish(store, "kernels/abc")
        store.note(note, answer)
        files = [path for path in top.rglob("*") if path.is_file()]
        for path in files:
            os.utime(path, (0, 0))
        use()
        store.prune()
        found = [path for path in files if path.exists()]
        assert {path.relative_to(top).parts[0] for path in found} == left


def test_noted_answer_is_no_work(tmp_path: Path) -> None:
    store = farm.Store(str(tmp_path))
    answer = {
        "worker": "one",
        "seconds": 5.0,
        "told": {"summary": "2 workloads", "figures": [["linked", 3.0, "files"]]},
        "made": ["kernels/abc"],
        "entries": {},
        "files": None,
        "error": None,
    }
    store.note("units/guest/abc", answer)
    assert worker.noted_answer(store, "units/guest/abc") == {
        **answer,
        "seconds": 0.0,
        "told": {"summary": "2 workloads", "figures": []},
        "made": [],
    }


def test_archive_that_was_lost_and_made_again_is_no_other_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = farm.Store(str(tmp_path / "store"))
    shelf = farm.Shelf(tmp_path)
    _entry(tmp_path / "kernels/abc")
    said: list[str] = []
    asked: list[_Job] = []
    farm_ = farm.Farm(mock.Mock(), store, shelf, said.append)
    monkeypatch.setattr(farm_, "_again", asked.append)
    unit = elsewhere.Unit("guest", "k", "a guest", {}, entries=("kernels/abc",))
    job = _Job(unit, sent={"kernels/abc": shelf.publish(store, "kernels/abc")})
    (lost,) = (tmp_path / "store/objects").iterdir()
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(farm.Damaged) as missing:
        store.require(job.sent["kernels/abc"])
    fault = elsewhere.as_json(missing.value, tmp_path)
    answer = {"worker": "one", "fault": fault, "damaged": True}
    # Others asked for it meanwhile, and it has other bytes by now.
    (tmp_path / "kernels/abc/a").write_text("packed again")
    shelf.publish(store, "kernels/abc")
    farm_._faulty(job, answer)
    assert "is not there" in said[-1] and not job.tried and asked == [job]
    lost.write_bytes(content)
    farm_._faulty(job, answer)
    assert "sees another store" in said[-1] and job.tried == {"one"}


def test_old_notes_and_what_killed_senders_left_make_room(tmp_path: Path) -> None:
    store = farm.Store(str(tmp_path))
    store.note("units/guest/abc", {"entries": {}, "files": None})
    store.note("entries/kernels/abc", {"sha256": "0", "size": 0, "form": "zst"})
    for name in ("half/0123", "probe-0123", "mine"):
        (tmp_path / name).write_text("left")
    names = ["entries/kernels/abc.json", "half/0123", "mine", "probe-0123"]
    names.append("units/guest/abc.json")

    def left() -> list[str]:
        paths = (path for path in tmp_path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(tmp_path)) for path in paths)

    store.prune()
    assert left() == names
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    store.prune()
    # Nobody knows what that is.
    assert left() == ["mine"]


def test_errors_keep_their_class(tmp_path: Path) -> None:
    for error in (
        guestrun.GuestEnded("it ended", log=tmp_path / "a/log", next="look"),
        NotJudged("who knows"),
        KstallError("something"),
    ):
        copy = elsewhere.of_json(elsewhere.as_json(error, tmp_path), Path("/else"))
        assert type(copy) is type(error)
        assert copy.what == error.what and copy.next == error.next
        assert copy.log == (Path("/else/a/log") if error.log else None)
    raw = elsewhere.as_json(NotJudged("x"), tmp_path)
    raw["classes"] = ["Unheard", *raw["classes"]]
    assert type(elsewhere.of_json(raw, tmp_path)) is NotJudged


def test_what_a_worker_lacks_is_named() -> None:
    worker = {
        "name": "w",
        "resources": {"slot": 2.0, "memory": 1.0, "gcc: gcc 12": 1e9},
    }
    assert _lacks(worker, {"slot": elsewhere.ALL, "memory": 0.5}) == []
    assert _lacks(
        worker, {"memory": 2.5, "kvm": 1.0, "gcc: gcc 14": 1.0, "clang: 19": 1}
    ) == [
        "1 of 2.5 memory",
        "0 of 1 kvm",
        "gcc: gcc 12 and not gcc: gcc 14",
        "no clang: 19",
    ]


def test_only_kvm_needs_a_machine_of_the_guests_architecture() -> None:
    machine = guest.Machine(memory="2G")
    emulated = guestrun.needs_of(machine, "tcg", arch.X86_64)
    assert emulated["memory"] == 2.5 and not any("arch" in name for name in emulated)
    needs = guestrun.needs_of(machine, "kvm", arch.X86_64)
    assert needs == {**emulated, "kvm": 1.0, "arch: x86_64": 1.0}


# -- Slurm, and without Dask -----------------------------------------------------------


def test_ctrl_c_stays_the_runs_with_slurm() -> None:
    """In a process of its own: what is imported once changes nothing any more."""
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal\n"
            "from kstall.base import KstallError\n"
            "from kstall import farm\n"
            "kept = signal.getsignal(signal.SIGINT)\n"
            "try:\n"
            "    farm.slurm_cluster('slurm:', 'store', None, None)\n"
            "except KstallError:\n"
            "    pass\n"
            "assert 'dask_jobqueue' in __import__('sys').modules\n"
            "assert signal.getsignal(signal.SIGINT) is kept\n",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_what_slurm_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script only: here is no Slurm."""
    monkeypatch.chdir(tmp_path)
    asked = []
    slurm = farm.slurm_cluster(
        "slurm:queue=batch,cores=8,memory=32GB,walltime=04:00:00,jobs=3",
        "/shared/store",
        None,
        tmp_path / "secrets",
        scale=lambda cluster, jobs: asked.append(jobs),
    )
    try:
        script = slurm.job_script()
    finally:
        slurm.close()
    assert asked == [3]
    for line in (
        "#SBATCH -p batch",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=30G",
        "#SBATCH -t 04:00:00",
    ):
        assert line in script.splitlines(), script
    (command,) = (line for line in script.splitlines() if "kstall worker" in line)
    assert command.startswith(f"{sys.executable} -m kstall worker tls://")
    for words in (
        "--nthreads 8",
        "--store /shared/store",
        "--tls-ca-file",
        "--tls-key",
    ):
        assert words in command
    # These words our worker understands.
    parsed = cli.parser().parse_args(command.split()[3:])
    assert parsed.store == "/shared/store" and parsed.nthreads == 8


@pytest.mark.parametrize(
    "text", ["slurm:", "slurm:cores=8", "slurm:cores=x,memory=1GB", "slurm:queue"]
)
def test_slurm_asked_unclearly(text: str, tmp_path: Path) -> None:
    with pytest.raises(KstallError, match="slurm:"):
        farm.slurm_cluster(text, "store", None, tmp_path)


@pytest.mark.parametrize("text", ["jobs=0,cores=1", "jobs=1,cores=0"])
def test_slurm_asked_for_nothing(text: str, tmp_path: Path) -> None:
    with pytest.raises(KstallError, match="at least one job, of at least one core"):
        farm.slurm_cluster(f"slurm:{text},memory=1GB", "store", None, tmp_path)


@pytest.mark.parametrize("missing", _SLURM)
def test_slurm_where_there_is_none(tmp_path: Path, missing: str) -> None:
    world = World(tmp_path / "world", level="quick")
    (there,) = {*_SLURM} - {missing}
    write(world.root / "bin", {there: "#!/bin/sh\n"})
    # It may be elsewhere on this machine.
    path = {"PATH": str(world.root / "bin")}
    world.prepare.append(lambda: os.environ.update(path))
    store = ("--store", str(world.root / "store"))
    ran = world.validate("--on", "slurm:cores=1,memory=1GB", *store)
    assert ran.exit_code == 2 and ran.report is None
    assert ran.output.splitlines() == [
        f"kstall: --on slurm: needs {missing}, which is not installed here",
        "  next: run this command on a machine that jobs are submitted from, or leave "
        "out --on",
    ]


@pytest.mark.parametrize(
    ("sbatch", "reason"),
    [
        (
            "echo 'sbatch: error: invalid partition specified: none' >&2\nexit 1\n",
            r"`sbatch \S+` exited 1:\nsbatch: error: invalid partition specified: none",
        ),
        ("echo 'Nobody counts here'\n", "Could not parse job id .*\n(.*\n)*.*Nobody"),
        ("exec sleep 60\n", r"`sbatch \S+` ran longer than 1 s"),
    ],
)
def test_jobs_that_slurm_does_not_take(
    tmp_path: Path, sbatch: str, reason: str
) -> None:
    """The run ends, with one message, instead of waiting for workers."""
    world = World(tmp_path / "world", level="quick")
    log = world.cache / "slurm/sbatch.log"
    called = world.root / "called"
    for name in _SLURM:
        script = f'#!/bin/sh\necho {name} "$@" >>{called}\n'
        write(world.root / "bin", {name: script + sbatch * (name == "sbatch")})
    opened = importlib.import_module("kstall.farm.opened")
    if "sleep" in sbatch:
        world.prepare.append(lambda: vars(opened).update(_SUBMIT_S=1.0))
    ran = world.validate(
        *("--on", "slurm:cores=2,memory=4GB,queue=none,jobs=2"),
        *("--store", str(world.root / "store")),
    )
    assert ran.exit_code == 2, ran.output
    assert "Traceback" not in ran.output
    message = f"--on slurm: a job could not be submitted: {reason}"
    assert len(re.findall(message, ran.output)) == 1, ran.output
    assert (
        f"  log: {log}\n  next: if it is due to what stands after slurm:" in ran.output
    )
    # There is also what was to be submitted.
    assert re.search(reason, log.read_text())
    assert "#SBATCH -p none" in log.read_text().splitlines()
    # No job is cancelled that was never begun.
    calls = [line.split()[0] for line in called.read_text().splitlines()]
    assert calls == ["sbatch", "sbatch"]


#: What an installation without workers does not have.
_EXTRA = ("dask", "distributed", "fsspec")


def test_without_dask(tmp_path: Path) -> None:
    """Everything goes on, but for workers, and those are told what to install."""
    code = (
        "import sys\n"
        f"for name in {_EXTRA}: sys.modules[name] = None\n"
        "from kstall import entry\n"
        "sys.exit(entry.main(sys.argv[1:]))\n"
    )

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", code, *words]
        env = {**os.environ, "KSTALL_CACHE": str(tmp_path)}
        return subprocess.run(
            argv, capture_output=True, text=True, env=env, check=False
        )

    assert ran("list").returncode == 0
    for words in (["validate", "--workers", "2"], ["worker", "tcp://127.0.0.1:1"]):
        done = ran(*words)
        assert done.returncode == 2
        assert "pip install '.[workers]'" in done.stderr, done.stderr


def test_verdict_without_dask(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    ours = farm.__name__

    def uninstall() -> None:
        """Tests have imported all of it before, and a run is a fork of theirs."""
        modules: dict[str, Any] = sys.modules
        delattr(modules["kstall"], "farm")
        for name in [*modules, *_EXTRA]:
            if name.partition(".")[0] in _EXTRA or f"{name}.".startswith(f"{ours}."):
                modules[name] = None
        for name in (*_EXTRA, ours):
            with pytest.raises(ImportError):
                importlib.import_module(name)

    world.prepare.append(uninstall)
    ran = world.validate()
    require_proven(ran)
    assert len(world.guests) == 7


# -- the line --------------------------------------------------------------------------


def test_line_does_not_look_at_all_when_no_slot_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A matrix has thousands of units, each of which looks as it comes, and goes."""
    line = TicketQueue(lambda: {"slot": 1.0, "build": 1.0})
    begun: list[Ticket] = []
    for _ in range(50):
        line.put(1, {"slot": 1, "build": 1}, begun.append)
    lacks = mock.Mock(side_effect=line._lacks)
    monkeypatch.setattr(line, "_lacks", lacks)
    line.advance()
    assert lacks.call_count == 1 and len(begun) == 1
    for number in range(50):
        line.done(begun[number])
    assert len(begun) == 50


def test_longest_is_begun_first_and_no_more_than_there_is_room_for() -> None:
    room = {"slot": 2.0, "build": 1.0}
    line = TicketQueue(lambda: room)
    begun: list[tuple[str, Ticket]] = []

    def put(name: str, seconds: float, **takes: float) -> None:
        line.put(seconds, takes, lambda ticket: begun.append((name, ticket)))

    def names() -> list[str]:
        return [name for name, _ in begun]

    put("first", 1, slot=1, build=1)
    put("kernels", 900, slot=2, build=1)
    put("short", 10, slot=1)
    put("long", 80, slot=1)
    # Kernels wait for the build, and others go by.
    assert names() == ["first", "short"]
    line.done(begun[0][1])
    # Now for slots, which nobody takes away from them.
    assert names() == ["first", "short"]
    line.done(begun[1][1])
    assert names()[2:] == ["kernels"]
    line.done(begun[2][1])
    assert names()[3:] == ["long"]
    put("more", 5, slot=3)
    assert names()[4:] == []
    room.update(slot=4.0)
    line.advance()
    assert names()[4:] == ["more"]
    line.done(begun[3][1])
    line.done(begun[4][1])
    # What is more than there is, the scheduler is told of at least.
    put("huge", 5, slot=99)
    assert names()[5:] == ["huge"]
