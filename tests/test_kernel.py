# SPDX-License-Identifier: GPL-2.0-or-later
"""The build: what is built again, what fails, and what a key stands for.

The tree is a Makefile that behaves as kbuild does where it matters here: it compiles
real C with real make and gcc, in an output directory.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstall.base import KstallError, cache, process, space
from kstall.build import kernel
from kstall.tree import File, TouchedFile, listing

MAKEFILE = """\
S := $(dir $(abspath $(firstword $(MAKEFILE_LIST))))
B := $(O)/arch/x86/boot
bzImage: $(O)/vmlinux
\t@mkdir -p $(B)/compressed && cp $(O)/vmlinux $(B)/compressed/vmlinux.bin
\t@cp $(B)/compressed/vmlinux.bin $(B)/compressed/vmlinux.bin.lz4
\t@cp $(B)/compressed/vmlinux.bin.lz4 $(B)/bzImage
\t@touch $(O)/System.map
$(O)/vmlinux: $(O)/a.o $(O)/b.o
\t@echo "  LD      vmlinux"
\t@gcc -nostdlib -shared -Wl,--build-id -o $@ $^
$(O)/%.o: $(S)%.c
\t@echo "  CC      $*.o"
\t@gcc -g -Wall -fPIC $(KCFLAGS) -c -o $@ $<
modules:
kernelrelease:
\t@echo 7.3.4-test
modules_install:
\t@mkdir -p $(INSTALL_MOD_PATH)/lib/modules/7.3.4-test
\t@ln -s /nowhere $(INSTALL_MOD_PATH)/lib/modules/7.3.4-test/build
"""


class Bench:
    """A tree, a cache, and a way to build one in the other."""

    def __init__(self, root: Path) -> None:
        self.cache = root / "cache"
        self.tree = self.cache / "trees/base/src"
        self.log = root / "build.log"
        self.tree.mkdir(parents=True)
        (self.tree.parent / "files").touch()
        self.ever_touched: dict[str, TouchedFile] = {}
        (self.tree / "Makefile").write_text(MAKEFILE)
        self.write("a.c", "int a(void) { return 1; }\n")
        self.write("b.c", "int b(void) { return 2; }\n")
        self.config = root / "config"
        self.config.write_text("CONFIG_A=y\n")
        self.content = "one"

    def write(self, name: str, text: str) -> None:
        """Put ``text`` into a file, as `tree` would for a series."""
        path = self.tree / name
        if path.exists() and name not in self.ever_touched:
            self.ever_touched[name] = TouchedFile(
                "", blob(path), path.stat().st_mtime_ns
            )
        path.write_text(text)
        if name in self.ever_touched:
            self.ever_touched[name] = dataclasses.replace(
                self.ever_touched[name], blob=blob(path)
            )
        self.content = text

    def applied(self) -> Any:
        return SimpleNamespace(
            base=SimpleNamespace(id="base"),
            path=self.tree,
            touched=("a.c",),
            compiled=self.content,
            ever_touched=self.ever_touched,
        )

    def tools(self) -> kernel.Toolchain:
        return kernel.Toolchain(("CC=gcc",), "gcc 12", "v1.30", False, ())

    def build(
        self, slot: str = "series", *, strict: bool = True
    ) -> tuple[kernel.Kernel, list[str]]:
        steps: list[str] = []
        ui: Any = SimpleNamespace(progress=lambda _, __, step: steps.append(step))
        self.log.unlink(missing_ok=True)
        built = kernel.built(
            self.applied(),
            self.applied,
            slot,
            kernel.Configured(self.config, reused=False),
            self.tools(),
            self.cache,
            log=self.log,
            ui=ui,
            strict=strict,
        )
        return built, steps


def blob(path: Path) -> str:
    return listing.blob_id(path.read_bytes())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_comes_out(bench: Bench) -> None:
    built, steps = bench.build()
    assert built.release == "7.3.4-test"
    assert len(built.build_id) == 40
    assert built.image.exists()
    assert built.vmlinux.exists()
    assert built.config.read_text() == "CONFIG_A=y\n"
    assert not list(built.modules.rglob("build")), "bpftrace would follow this link"
    assert set(steps[:2]) == {"a.o", "b.o"}, "in any order: make -j"
    assert steps[2:] == ["vmlinux"]
    entry = kernel.find(built.key, bench.cache)
    assert entry == dataclasses.replace(built, reused=True)


def test_it_does_not_show_where_it_was_built(tmp_path: Path) -> None:
    """Of two machines with a kernel of one key, one boots what the other asks for."""
    one, other = (Bench(tmp_path / name).build()[0] for name in ("one", "an-other"))
    assert one.key == other.key
    assert one.build_id == other.build_id
    assert one.vmlinux.read_bytes() == other.vmlinux.read_bytes()


@pytest.mark.parametrize("stale", ["bzImage", "compressed/vmlinux.bin"])
def test_an_image_of_another_kernel_is_none(bench: Bench, stale: str) -> None:
    """As a compiler's cache made it once: a guest would boot what is not judged."""
    bench.build()
    makefile = bench.tree / "Makefile"
    lines = MAKEFILE.splitlines(keepends=True)
    kept = [line for line in lines if not line.rstrip().endswith(f"$(B)/{stale}")]
    assert len(kept) == len(lines) - 1
    makefile.write_text("".join(kept))
    bench.write("a.c", "int a(void) { return 3; }\n")
    with pytest.raises(KstallError, match="holds another kernel than vmlinux"):
        bench.build()
    assert len(list((bench.cache / "kernels").iterdir())) == 1


def test_a_full_disk_is_no_fault_of_the_source(bench: Bench) -> None:
    message = "$(S)a.c:1: fatal error: error writing to x.s: No space left on device"
    makefile = bench.tree / "Makefile"
    makefile.write_text(MAKEFILE.replace("@gcc -g -Wall", f"@echo '{message}'; false"))
    with pytest.raises(KstallError, match="no space left while building") as caught:
        bench.build()
    assert not isinstance(caught.value, kernel.BuildError)


def test_only_what_changed_is_compiled_again(bench: Bench) -> None:
    bench.build()
    bench.write("a.c", "int a(void) { return 3; }\n")
    _, steps = bench.build()
    assert steps == ["a.o", "vmlinux"]


def test_keys_tell_contents_config_and_compiler_apart(bench: Bench) -> None:
    def key(**tools: Any) -> str:
        return kernel.key_of(
            bench.content,
            kernel.Configured(bench.config, reused=False),
            dataclasses.replace(bench.tools(), **tools),
        )

    keys = {key(), key(compiler="gcc 14"), key(pahole="v1.31")}
    bench.content = "two"
    keys.add(key())
    bench.config.write_text("CONFIG_A=m\n")
    keys.add(key())
    assert len(keys) == 5


def test_a_warning_in_a_touched_file_fails_every_time(bench: Bench) -> None:
    bench.write("a.c", "int a(void) { int unused; return 1; }\n")
    for _ in range(2):
        with pytest.raises(kernel.TouchedFileWarns) as caught:
            bench.build()
        assert "a.c:1:" in str(caught.value)
        assert "unused" in str(caught.value)
    assert not (bench.cache / "kernels").exists()


def test_a_warning_of_sanitizers_is_nobody_s(bench: Bench) -> None:
    bench.write("a.c", "int a(void) { int unused; return 1; }\n")
    built, _ = bench.build(strict=False)
    assert "unused" in bench.log.read_text()
    assert built.image.exists()


def test_a_warning_elsewhere_is_the_base_s_own(bench: Bench) -> None:
    bench.write("b.c", "int b(void) { int unused; return 1; }\n")
    bench.build()


def test_a_warning_of_a_build_that_was_killed_comes_back(bench: Bench) -> None:
    """The object of the killed build is there and new; make alone would skip it."""
    bench.write("a.c", "int a(void) { int unused; return 1; }\n")

    def killed(_: float, __: float, step: str) -> None:
        if step == "vmlinux":
            raise KeyboardInterrupt

    ui: Any = SimpleNamespace(progress=killed)
    with pytest.raises(KeyboardInterrupt):
        kernel.built(
            bench.applied(),
            bench.applied,
            "series",
            kernel.Configured(bench.config, reused=False),
            bench.tools(),
            bench.cache,
            log=bench.log,
            ui=ui,
        )
    assert (bench.cache / "builds/base/a.o").exists()
    with pytest.raises(kernel.TouchedFileWarns):
        bench.build()


def test_a_build_error_names_file_and_line(bench: Bench) -> None:
    bench.write("a.c", "int a(void)\n{ return 1\n}\n")
    with pytest.raises(kernel.BuildError) as caught:
        bench.build()
    assert "a.c:2:" in str(caught.value)
    assert str(bench.log) in str(caught.value)


def test_a_missing_tool_is_not_the_series_fault(bench: Bench) -> None:
    makefile = bench.tree / "Makefile"
    makefile.write_text(MAKEFILE.replace("@gcc -g -Wall", "@no-such-gcc -g -Wall"))
    with pytest.raises(KstallError) as caught:
        bench.build()
    assert not isinstance(caught.value, kernel.BuildError)
    assert "no-such-gcc" in str(caught.value)


def test_no_space_is_said_before_the_build(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "available", lambda _: 1 << 20)
    with pytest.raises(space.NoSpace, match="no room for a build") as caught:
        bench.build()
    assert "KSTALL_CACHE" in str(caught.value)


def test_prune_keeps_what_was_used_last(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        os.utime(tmp_path / str(number), (number, number))
    os.utime(tmp_path / "0", (9, 9))
    cache.prune(tmp_path, keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"0", "3"}


def test_prune_keeps_more_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        os.utime(tmp_path / str(number), (number, number))
    monkeypatch.setattr(cache, "PLENTY", 0)
    cache.prune(tmp_path, keep=1, most=3)
    assert {p.name for p in tmp_path.iterdir()} == {"1", "2", "3"}
    monkeypatch.setattr(cache, "PLENTY", 2**70)
    cache.prune(tmp_path, keep=1, most=3)
    assert {p.name for p in tmp_path.iterdir()} == {"3"}


def test_prune_keeps_what_another_run_boots(tmp_path: Path) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    for number in range(4):
        (tmp_path / str(number)).mkdir()
        os.utime(tmp_path / str(number), (number, number))
    with cache.held(tmp_path / "0"), cache.held(tmp_path / "1"):
        assert (tmp_path / "0").stat().st_mtime > 9, "it was used now"
        os.utime(tmp_path / "0", (0, 0))
        cache.prune(tmp_path, keep=1)
        assert names() == ["0", "1"]
        # In another process, which cannot see that in a variable of ours.
        words = "import sys, pathlib; from kstall.base import cache\n"
        words += "cache.prune(pathlib.Path(sys.argv[1]), keep=0)"
        subprocess.run([sys.executable, "-c", words, str(tmp_path)], check=True)
        assert names() == ["0", "1"]
    cache.prune(tmp_path, keep=1)
    assert names() == ["1"]
    # Another run deletes as well.
    cache._remove_unheld(tmp_path / "missing")
    with cache.held(tmp_path / "missing"):
        pass


def test_prune_keeps_what_somebody_has(tmp_path: Path) -> None:
    entry = tmp_path / "0"
    entry.mkdir()
    owner = kernel.Kernel("0", entry, "7.3.4", "ab", reused=True)
    equal = dataclasses.replace(owner)
    cache.hold_for(owner, entry)
    del equal
    cache.prune(tmp_path, keep=0)
    assert entry.is_dir()
    del owner
    cache.prune(tmp_path, keep=0)
    assert not entry.exists()
    cache.hold_for(cache.Used(), tmp_path / "missing")


def test_symbols_that_only_the_series_has() -> None:
    def state(kconfig: str, other: str) -> Any:
        texts = {"lib/Kconfig": kconfig, "lib/Kconfig.debug": None, "lib/a.c": other}
        return tuple(
            (path, None if text is None else File(text.encode(), False))
            for path, text in texts.items()
        )

    before = state("config OLD\n", "config IN_C\n")
    after = state("config OLD\nconfig NEW\n", "config IN_C\nconfig NOT\n")
    plan: Any = SimpleNamespace(states=(before, before, after))
    assert kernel.added_symbols(plan) == {"NEW"}


@pytest.mark.skipif(not shutil.which("ccache"), reason="there is no ccache")
def test_what_an_assembler_includes_is_not_taken_from_a_cache(tmp_path: Path) -> None:
    """Two kernels of one size differ only in what piggy.S includes by name."""
    pahole = tmp_path / "pahole"
    pahole.write_text("#!/bin/sh\necho v1\n")
    pahole.chmod(0o755)
    tools = kernel.toolchain(pahole, tmp_path / "cache")
    compiler = tools.make[0].removeprefix("CC=")
    Path(compiler).chmod(0o644)  # of a run that was killed before it could
    assert kernel.toolchain(pahole, tmp_path / "cache") == tools
    env = dict(tools.env) | {"CCACHE_LOGFILE": str(tmp_path / "log")}
    data = tmp_path / "data"
    sources = {
        "piggy.S": '.incbin "data"\n',
        "config.c": '__asm__(".incbin \\"data\\"");\n',
        "plain.c": "int plain;\n",
    }
    built = []
    for content in ("first", "other"):
        data.write_text(content)
        for name, text in sources.items():
            (tmp_path / name).write_text(text)
            target = tmp_path / f"{name}.o"
            process.run(
                [compiler, "-MMD", "-c", "-o", target, name], cwd=tmp_path, env=env
            )
            built.append(target.read_bytes())
    before, after = built[:3], built[3:]
    for old, new in zip(before[:2], after[:2], strict=True):
        assert b"first" in old
        assert b"other" in new
    assert before[2] == after[2]
    assert "Succeeded getting cached result" in (tmp_path / "log").read_text()
