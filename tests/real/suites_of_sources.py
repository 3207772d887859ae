"""The tests that come with others' source packages, as parts of `tests.real.suites`.

SOURCES is a directory in which they were unpacked.  acl, attr, fuse3, perl and nfstest (Debian 13
and later) run as they are, with what is installed; coreutils has to have been built (`./configure
&& make && make -C gnulib-tests check TESTS=`), tar and cpio likewise (`make -C tests check
TESTSUITEFLAGS=-l`), of SQLite its `testfixture`, and of git its helper (`make t/helper/test-tool
bin-wrappers/git GIT-BUILD-OPTIONS && make -C templates`), of the release that is installed.  What
they make is in the folder that they run in.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from .suite_part import Part

ACL_FAILED = re.compile(r"^(\[\d+\].*) -- failed$", re.MULTILINE)
FUSE_FAILED = re.compile(r"^ *\d+ \[(.*?)\] (?!OK|.*\bOK$)", re.MULTILINE)
TAP_FAILED = re.compile(r"^not ok (\d+(?! # TODO).*?)(?<!TODO known breakage)$", re.MULTILINE)
LEFT_OUT = frozenset({0, 77})
"""Automake's exit codes of a test that passed, and of one that does not concern this machine."""
COREUTILS = [
    "cp",
    "mv",
    "rm",
    "ls",
    "mkdir",
    "chmod",
    "chown",
    "chgrp",
    "touch",
    "du",
    "df",
    "dd",
    "ln",
    "rmdir",
    "install",
    "readlink",
    "tail-2",
    "split",
    "shred",
    "misc",
]
SQLITE_FAILED = re.compile(r"^! (\S+) expected", re.MULTILINE)
SQLITE = [
    "lock",
    "lock[2-7]",
    "lock_common",
    "wal",
    "wal[2-9]",
    "walcrash",
    "walpersist",
    "walro",
    "walmode",
    "walslow",
    "mmap[1-4]",
    "mmapwarm",
    "bigmmap",
    "bigfile*",
    "atomic*",
    "backup",
    "backup[24]",
    "crash[2-8]",
    "delete_db",
    "exclusive*",
    "journal[1-3]",
    "multiplex*",
    "nolock",
    "oserror",
    "pager1",
    "pagerfault",
    "savepoint",
    "shared*",
    "superlock",
    "symlink*",
    "sync*",
    "temptable",
    "tempdb*",
    "unixexcl",
    "uri",
    "vacuum",
]
NFSTEST_FAILED = re.compile(r"^ *FAIL: (.*?)(?: \(\d+ passed.*)?$", re.MULTILINE)
AUTOTEST_FAILED = re.compile(r"^ *(\d+: .*?) +FAILED", re.MULTILINE)
OF_TEXT = re.compile(r"float|printf|snan|nan|thread|lock$|cond|mb|wc|u8|str|hash|md5|sha|time_rz")
PERL = [
    "t/io",
    "lib/File",
    "ext/SDBM_File/t",
    "ext/File-Glob/t",
    "ext/FileCache/t",
    "dist/Tie-File/t",
    "dist/PathTools/t",
    "cpan/DB_File/t",
    "cpan/File-Temp/t",
    "ext/File-Find/t",
]


def shell(script: str) -> list[str]:
    return ["/bin/bash", "-c", script]


def acl(source: Path) -> Iterator[tuple[str, Part]]:
    """Tests that are transcripts, compared line by line;
    names of users come from a library that is laid before the C library.
    """
    library = (
        "for s in passwd group; do gcc -shared -fPIC -w -D_GNU_SOURCE -DEXPORT= -include stdlib.h "
        '-I$T "-DBASEDIR=\\"$S\\"" -I$S/include'
        " -I$S/libmisc -c $S/test/test_$s.c -o $T/$s.o; done; gcc -shared -o $T/l.so $T/passwd.o "
        "$T/group.o; export LD_PRELOAD=$T/l.so"
    )
    for test in sorted([*source.glob("test/*.test"), *source.glob("test/root/*.test")]):
        setting = (
            f"S={shlex.quote(str(source))}; T=$(mktemp -d -p /tmp); chmod 755 $T; touch $T/config.h"
        )
        body = (
            "cp -a $S/test test; (export srcdir=.; "
            f"{library if source.name.startswith('acl') else ':'}; test/run {test})"
        )
        yield test.name, Part(shell(f"{setting}; {body}; rm -r $T"), ACL_FAILED)


def fuse3(source: Path) -> Iterator[tuple[str, Part]]:
    """The classic program of FUSE's own regression tests, as root and as a plain user."""
    make = (
        "T=$(mktemp -d -p /tmp); chmod 755 $T; printf '#define HAVE_%s 1\\n' SETXATTR "
        "COPY_FILE_RANGE STRUCT_STAT_ST_ATIM >$T/fuse_config.h;"
        f" gcc -w -D_FILE_OFFSET_BITS=64 -I$T -I{source}/include -o $T/s "
        f"{source}/test/test_syscalls.c || exit 9;"
    )
    for who, rights in (
        ("root", ""),
        ("user", "setpriv --reuid 65534 --regid 65534 --clear-groups"),
    ):
        for form in ("", "-u"):
            run = (
                f"mkdir d; chmod 777 d; {rights} $T/s $PWD/d {form}; code=$?; rm -r $T; exit $code"
            )
            yield f"test_syscalls-{who}{form}", Part(shell(f"{make} {run}"), FUSE_FAILED)


def perl(source: Path) -> Iterator[tuple[str, Part]]:
    """Tests of files and of modules that keep data in files, by the Perl that is installed."""
    for test in sorted(t for folder in PERL for t in source.glob(f"{folder}/*.t")):
        name = test.relative_to(source)
        if name.parts[0] == "t":
            core = (
                "$(perl -MConfig -e 'print qq($Config{privlibexp} $Config{archlibexp} "
                "$Config{archlibexp}-base)')"
            )
            library = (
                f"L=$(mktemp -d -p /tmp); for i in {core}; do cp -rs $i/. $L/ 2>/dev/null; done"
            )
            links = (
                f"{library}; ln -s $L lib; mkdir t; ln -s {source}/t/* t/; (cd t; perl "
                f"io/{test.name}); code=$?; rm -r $L; exit $code"
            )
        else:
            links = f"mkdir t; cp -rs {test.parent}/. t/; perl t/{test.name}"
        yield str(name), Part(shell(links), TAP_FAILED)


def coreutils(source: Path) -> Iterator[tuple[str, Part]]:
    """Tests of the programs, and those of gnulib's functions that coreutils use."""
    setting = (
        f"export srcdir={source} abs_srcdir={source} abs_top_srcdir={source} "
        f"abs_top_builddir={source} CONFIG_HEADER={source}/lib/config.h"
        f' built_programs="$(cd {source}/src; ls)" VERSION=x PACKAGE_VERSION=x PERL=perl '
        "AWK=awk 'EGREP=grep -E' SHELL=/bin/sh CC=gcc LC_ALL=C"
        " host_os=linux-gnu LOCALE_FR=none LOCALE_FR_UTF8=none LOCALE_JA=none LOCALE_ZH_CN=none "
        f"USE_ACL=1 fail=0 PATH={source}/src:$PATH;"
    )
    for folder in COREUTILS:
        for test in sorted(source.glob(f"tests/{folder}/*.sh")):
            links = f"ln -s {source}/src {source}/tests {source}/init.cfg .;"
            command = shell(f"{setting} {links} CU_TEST_NAME={test.stem} /bin/sh {test} 9>&2")
            yield f"{folder}/{test.name}", Part(command, good_codes=LEFT_OUT)
    gnulib = source / "gnulib-tests"
    for test in sorted(t for t in gnulib.glob("test-*") if t.suffix in {"", ".sh"}):
        if not OF_TEXT.search(test.name):
            links = f"ln -s {gnulib}/test-* {gnulib}/*.sh . 2>/dev/null; rm -f *.o *.c;"
            run = f"bash ./{test.name}" if test.suffix else f"./{test.name}"
            command = shell(f"{setting} {links} export srcdir=. PATH=$PWD:$PATH; {run} 9>&2")
            yield f"gnulib/{test.name}", Part(command, good_codes=LEFT_OUT)


def autotest(source: Path) -> Iterator[tuple[str, Part]]:
    """A suite of GNU's Autotest as one part: its tests are in the folder of the run,
    the programs in the source's.
    """
    run = (
        f"cp {source}/tests/at{{config,local}} .; bash {source}/tests/testsuite "
        f"AUTOTEST_PATH={source}/src:{source}/tests"
    )
    yield "all", Part(shell(run), AUTOTEST_FAILED, {"TAR_OPTIONS": ""})


def sqlite(source: Path) -> Iterator[tuple[str, Part]]:
    """Scripts about files, locks and what a crash leaves, each by a process of its own."""
    scripts = {t for name in SQLITE for t in source.glob(f"test/{name}.test")}
    for test in sorted(scripts):
        yield test.stem, Part([str(source / "testfixture"), str(test)], SQLITE_FAILED)


def git(source: Path) -> Iterator[tuple[str, Part]]:
    """Scripts of the git that is installed, up to those of networks."""
    environment = {"GIT_TEST_INSTALLED": "/usr/bin", "GIT_TEST_CHAIN_LINT": "0"}
    for test in sorted(source.glob("t/t[0-3]*.sh")) + sorted(source.glob("t/t7[0-5]*.sh")):
        script = f'R=$PWD/trash; cd {source}/t; sh ./{test.name} --root="$R"'
        yield test.stem, Part(shell(script), TAP_FAILED, environment)


def nfstest(source: Path) -> Iterator[tuple[str, Part]]:
    """What NFS' testers ask of POSIX and of locks, each call by itself;
    there is no server, and no packets are looked at.
    """
    tests = [("posix", name) for name in _names(source, "posix", "TESTNAMES")]
    for several in ("BTESTS", "NPTESTS", "OPTESTS"):  # the others want a second machine
        tests += [("lock", name) for name in _names(source, "lock", several)]
    listens = "#!/bin/sh\necho listening on nothing >&2\nexec sleep 900\n"
    setting = (
        f"T=$(mktemp -d -p /tmp); printf {shlex.quote(listens)} >$T/tcpdump; chmod -R 777 $T; "
        f"export PATH=$T:$PATH PYTHONPATH={source};"
        " mkdir -m 777 d"
    )
    for who, rights in (
        ("root", ""),
        ("user", "setpriv --reuid 65534 --regid 65534 --clear-groups"),
    ):
        for kind, name in tests:
            options = (
                "--server 127.0.0.1 --nomount --mtpoint $PWD/d --notty --sudo= --tmpdir $T "
                f"--runtest {name}"
            )
            run = (
                f"{rights} /usr/bin/python3 {source}/test/nfstest_{kind} {options}; code=$?; rm "
                "-r $T; exit $code"
            )
            yield f"{kind}-{name}-{who}", Part(shell(f"{setting}; {run}"), NFSTEST_FAILED)


def _names(source: Path, kind: str, several: str) -> list[str]:
    """Return a list of names that a program of NFStest begins with."""
    text = (source / "test" / f"nfstest_{kind}").read_text()
    found = re.search(rf"^{several} += (\[.*?\])", text, re.DOTALL | re.MULTILINE)
    assert found, f"nfstest_{kind} has no {several}"
    return ast.literal_eval(found[1])


NEEDED = {
    "acl": (acl, "test/run"),
    "attr": (acl, "test/run"),
    "fuse3": (fuse3, "test/test_syscalls.c"),
    "perl": (perl, "t/test.pl"),
    "coreutils": (coreutils, "gnulib-tests/test-open"),
    "tar": (autotest, "tests/genfile"),
    "cpio": (autotest, "tests/genfile"),
    "sqlite": (sqlite, "testfixture"),
    "git": (git, "t/helper/test-tool"),
    "NFStest": (nfstest, "test/nfstest_posix"),
}
"""By package: what makes its parts, and the file that says it is there, and built."""


def parts(sources: Path) -> dict[str, Part]:
    """Return the parts of the packages in a directory, named PACKAGE/TEST;
    print which are missing.
    """
    found = {}
    for package, (made, needed) in NEEDED.items():
        places = [p for p in sorted(sources.glob(f"{package}*")) if (p / needed).exists()]
        if places:
            found |= {f"{package}/{name}": part for name, part in made(places[-1])}
        else:
            print(f"left out: no {package} with {needed} in {sources}")
    return found
