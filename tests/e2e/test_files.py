"""Files: every call of the SDK, every encoding of `/files`, and every trick with paths."""

import asyncio
import gzip
import hashlib
import io
import os
import re
import threading
import time
import urllib.parse
import zlib

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    RateLimitException,
    Sandbox,
    SandboxException,
)

from harness import rpc
from harness.wait import wait_for


@pytest.fixture
def place(sbx, request):
    """A fresh directory per test."""
    path = f"/home/user/t/{abs(hash(request.node.nodeid))}"
    sbx.files.make_dir(path)
    return path


def owner(box, path):
    return box.commands.run(f"stat -c '%U:%G %a' -- '{path}'", user="root").stdout.strip()


# -- write and read -------------------------------------------------------------------------


@pytest.mark.parametrize(("octet", "zipped"), [(False, False), (True, False), (True, True)], ids=["multipart", "octet-stream", "gzip"])
@pytest.mark.parametrize("data", ["text ünd ☃", "", b"\0\xff\r\n\r\n--x", os.urandom(300_000)], ids=["text", "empty", "bytes", "random"])
def test_round_trip(sbx, place, octet, zipped, data):
    path = f"{place}/file"
    info = sbx.files.write(path, data, gzip=zipped, use_octet_stream=octet)
    assert (info.path, info.name, info.type) == (path, "file", FileType.FILE)
    raw = data.encode() if isinstance(data, str) else data
    assert bytes(sbx.files.read(path, format="bytes")) == raw
    assert bytes(sbx.files.read(path, format="bytes", gzip=True)) == raw
    assert b"".join(sbx.files.read(path, format="stream")) == raw
    assert sbx.files.get_info(path).size == len(raw)
    if isinstance(data, str):
        assert sbx.files.read(path) == data


def test_write_from_file_objects_and_iterables(sbx, place):
    for name, data, expected in (
        ("binary", io.BytesIO(b"abc" * 1000), b"abc" * 1000),
        ("text", io.StringIO("grüß" * 10), ("grüß" * 10).encode()),
        ("chunks", (b"%d," % i for i in range(1000)), b"".join(b"%d," % i for i in range(1000))),
    ):
        sbx.files.write(f"{place}/{name}", data)
        assert bytes(sbx.files.read(f"{place}/{name}", format="bytes")) == expected


def test_overwrite_shortens_and_keeps_the_mode(sbx, place):
    path = f"{place}/script"
    sbx.files.write(path, "long long long")
    sbx.commands.run(f"chmod 750 {path}")
    sbx.files.write(path, "short")
    assert sbx.files.read(path) == "short"
    assert owner(sbx, path) == "user:user 750"


def test_parents_are_made_with_the_users_ownership(sbx, place):
    sbx.files.write(f"{place}/a/b/c/file", "x")
    for part, expected in (("a", "user:user 755"), ("a/b/c", "user:user 755"), ("a/b/c/file", "user:user 644")):
        assert owner(sbx, f"{place}/{part}") == expected


def test_relative_tilde_and_root_paths(sbx):
    assert sbx.files.write("rel.txt", "1").path == "/home/user/rel.txt"
    assert sbx.files.write("~/til.txt", "2").path == "/home/user/til.txt"
    assert sbx.files.write("rel.txt", "3", user="root").path == "/root/rel.txt"
    assert sbx.files.read("rel.txt") == "1"
    assert sbx.files.read("rel.txt", user="root") == "3"
    assert owner(sbx, "/root/rel.txt") == "root:root 644"


def test_write_files(sbx, place):
    files = [{"path": f"{place}/{i}", "data": f"data {i}"} for i in range(20)]
    for octet in (False, True):
        infos = sbx.files.write_files(files, use_octet_stream=octet)
        assert [i.path for i in infos] == [f["path"] for f in files]
    assert [sbx.files.read(f["path"]) for f in files] == [f["data"] for f in files]
    assert sbx.files.write_files([]) == []


def test_missing_directory_and_unknown_user(sbx, place):
    with pytest.raises(FileNotFoundException):
        sbx.files.read(f"{place}/none")
    with pytest.raises(InvalidArgumentException):
        sbx.files.read(place)
    with pytest.raises(Exception, match="user"):
        sbx.files.read("/etc/passwd", user="nobody-here")
    with pytest.raises((InvalidArgumentException, SandboxException)):
        sbx.files.write(place, "onto a directory")


def test_what_is_made_belongs_to_the_named_user(sbx, place):
    """The agent reaches every file, as E2B's does; the user decides paths and ownership of what is new."""
    sbx.files.write(f"{place}/u", "1")
    sbx.files.write(f"{place}/r", "1", user="root")
    sbx.files.make_dir(f"{place}/rd/deep", user="root")
    assert [owner(sbx, f"{place}/{n}") for n in ("u", "r", "rd/deep")] == ["user:user 644", "root:root 644", "root:root 755"]
    sbx.files.write(f"{place}/u", "2", user="root")
    sbx.files.write(f"{place}/r", "2", user="user")
    assert sbx.files.read(f"{place}/u") + sbx.files.read(f"{place}/r") == "22"
    sbx.commands.run(f"chmod 600 {place}/r", user="root")
    sbx.files.write(f"{place}/r", "3", user="user")
    assert owner(sbx, f"{place}/r").endswith(" 600"), "an upload opened up a file that was closed"


def test_proc_files_are_read_though_they_have_no_size(sbx):
    assert re.fullmatch(r"[0-9.]+ [0-9.]+\n", sbx.files.read("/proc/uptime"))
    assert "Linux" in sbx.files.read("/proc/version")
    assert sbx.files.read("/proc/version", gzip=True) == sbx.files.read("/proc/version")


def test_empty_file_has_content_length_zero(server, sbx, place):
    sbx.files.write(f"{place}/empty", "")
    with server.edge(sbx) as edge:
        answer = edge.get("/files", params={"path": f"{place}/empty"})
        assert answer.status_code == 200 and answer.headers["Content-Length"] == "0"


def test_ranges_and_conditions(server, sbx, place):
    sbx.files.write(f"{place}/r", "0123456789")
    with server.edge(sbx) as edge:

        def get(**head):
            return edge.get("/files", params={"path": f"{place}/r"}, headers=head)

        whole = get()
        assert whole.headers["Content-Disposition"].startswith("inline; filename=")
        part = get(Range="bytes=2-4")
        assert (part.status_code, part.content) == (206, b"234")
        assert part.headers["Content-Range"] == "bytes 2-4/10"
        assert get(Range="bytes=-3").content == b"789"
        assert get(Range="bytes=8-").content == b"89"
        assert get(Range="bytes=50-60").status_code == 416
        for odd in ("bytes=5-2", "lines=1-2", "bytes=", "bytes=a-b", "bytes=" + "0-1," * 5000):
            assert get(Range=odd).status_code in (200, 206, 400, 416, 431), odd
        if "Last-Modified" in whole.headers:
            assert get(**{"If-Modified-Since": whole.headers["Last-Modified"]}).status_code == 304
        if "ETag" in whole.headers:
            assert get(**{"If-None-Match": whole.headers["ETag"]}).status_code == 304


def test_encodings_of_a_download(server, sbx, place):
    sbx.files.write(f"{place}/z", "z" * 100_000)
    with server.edge(sbx) as edge:

        def get(encoding):
            return edge.get("/files", params={"path": f"{place}/z"}, headers={"Accept-Encoding": encoding})

        zipped = get("gzip")
        assert zipped.headers["Content-Encoding"] == "gzip" and zipped.content == b"z" * 100_000
        assert "Content-Encoding" not in get("identity").headers
        assert get("gzip;q=0, identity").headers.get("Content-Encoding") is None
        assert get("br, identity;q=0").status_code == 406
        assert get("br").content == b"z" * 100_000


# -- entries -------------------------------------------------------------------------------------


def test_entry_info(server, sbx, place):
    sbx.files.write(f"{place}/f", "12345")
    info = sbx.files.get_info(f"{place}/f")
    assert (info.name, info.path, info.type, info.size) == ("f", f"{place}/f", FileType.FILE, 5)
    assert (info.mode, info.permissions) == (0o644, "-rw-r--r--")
    assert (info.owner, info.group) == ("user", "user")
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    assert info.symlink_target is None
    folder = sbx.files.get_info(place)
    assert (folder.type, folder.permissions) == (FileType.DIR, "drwxr-xr-x")
    sbx.commands.run(f"ln -s f {place}/good; ln -s nowhere {place}/bad")
    good, bad = sbx.files.get_info(f"{place}/good"), sbx.files.get_info(f"{place}/bad")
    assert good.type == FileType.SYMLINK and good.symlink_target == f"{place}/f"
    assert bad.type == FileType.SYMLINK and bad.symlink_target
    with server.edge(sbx) as edge:
        for name, kind in (("good", "FILE_TYPE_FILE"), ("bad", "FILE_TYPE_SYMLINK")):
            entry = rpc.unary(edge, "filesystem.Filesystem", "Stat", {"path": f"{place}/{name}"}).json()["entry"]
            assert (entry["type"], entry["isSymlink"]) == (kind, True), "the wire has the target's type"
    with pytest.raises(FileNotFoundException):
        sbx.files.get_info(f"{place}/none")


def test_list_with_depth_and_order(sbx, place):
    sbx.commands.run("mkdir -p b/bb/bbb a; touch b/bb/f z 'a/x y' .hidden", cwd=place)

    def listed(depth):
        return [e.path.removeprefix(place + "/") for e in sbx.files.list(place, depth=depth)]

    assert sorted(listed(1)) == [".hidden", "a", "b", "z"] and listed(1) == sorted(listed(1))
    assert set(listed(2)) == {".hidden", "a", "a/x y", "b", "b/bb", "z"}
    assert set(listed(10)) == {".hidden", "a", "a/x y", "b", "b/bb", "b/bb/bbb", "b/bb/f", "z"}
    with pytest.raises(InvalidArgumentException):
        sbx.files.list(place, depth=0)  # refused by the SDK itself
    with pytest.raises(FileNotFoundException):
        sbx.files.list(f"{place}/none")
    with pytest.raises(InvalidArgumentException):
        sbx.files.list(f"{place}/z")


def test_list_follows_a_symlinked_root_and_refuses_a_cycle(sbx, place):
    sbx.commands.run("mkdir real; touch real/f; ln -s real link; ln -s loop2 loop1; ln -s loop1 loop2; ln -s .. real/up", cwd=place)
    assert [e.path for e in sbx.files.list(f"{place}/link")] == [f"{place}/link/f", f"{place}/link/up"]
    with pytest.raises(SandboxException):
        sbx.files.list(f"{place}/loop1")
    assert len(sbx.files.list(place, depth=1000)) < 50, "links below the root are not followed"


def test_make_dir_rename_remove_exists(sbx, place):
    assert sbx.files.make_dir(f"{place}/x/y") is True
    assert sbx.files.make_dir(f"{place}/x/y") is False
    sbx.files.write(f"{place}/file", "1")
    with pytest.raises(InvalidArgumentException):
        sbx.files.make_dir(f"{place}/file")
    moved = sbx.files.rename(f"{place}/file", f"{place}/new/parents/file")
    assert moved.path == f"{place}/new/parents/file" and sbx.files.read(moved.path) == "1"
    assert not sbx.files.exists(f"{place}/file")
    with pytest.raises(FileNotFoundException):
        sbx.files.rename(f"{place}/file", f"{place}/other")
    sbx.files.remove(f"{place}/new")
    assert not sbx.files.exists(f"{place}/new")
    sbx.files.remove(f"{place}/new")  # idempotent
    sbx.commands.run(f"ln -s /etc {place}/etc")
    sbx.files.remove(f"{place}/etc")
    assert sbx.files.exists("/etc/passwd"), "removing a link removed what it points to"


def test_root_and_odd_removals(sbx):
    for path in ("/", "/proc", ""):
        with pytest.raises((InvalidArgumentException, SandboxException)):
            sbx.files.remove(path, user="user")
        assert sbx.commands.run("test -d /home/user && ls / | grep -c usr").stdout.strip() == "1"


# -- metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("octet", [False, True], ids=["multipart", "octet-stream"])
def test_metadata_is_stored_shown_and_replaced(sbx, place, octet):
    path = f"{place}/m"
    info = sbx.files.write(path, "x", metadata={"Author": "me", "k2": "v & =;"}, use_octet_stream=octet)
    assert info.metadata == {"author": "me", "k2": "v & =;"}
    assert sbx.files.get_info(path).metadata == {"author": "me", "k2": "v & =;"}
    assert sbx.files.list(place)[0].metadata == {"author": "me", "k2": "v & =;"}
    sbx.files.write(path, "y", metadata={"only": "this"}, use_octet_stream=octet)
    assert sbx.files.get_info(path).metadata == {"only": "this"}
    assert sbx.files.write(path, "z", use_octet_stream=octet).metadata is None
    assert sbx.files.get_info(path).metadata is None


def test_metadata_limits(server, sbx, place):
    with server.edge(sbx) as edge:

        def put(**head):
            return edge.post("/files", params={"path": f"{place}/m"}, content=b"x", headers={"Content-Type": "application/octet-stream", **head})

        assert put(**{"X-Metadata-" + "k" * 246: "v"}).status_code == 200
        assert put(**{"X-Metadata-" + "k" * 247: "v"}).status_code == 400
        assert put(**{"X-Metadata-a": "v" * 5000}).status_code == 400
        assert put(**{"X-Metadata-a": "grüß".encode()}).status_code == 400
        assert put(**{"X-Metadata-": "v"}).status_code == 400
        plain = put()
        assert plain.json() == [{"name": "m", "path": f"{place}/m", "type": "file"}], "no extra keys"


# -- watching -----------------------------------------------------------------------------------------


def test_watch_sync(server, sbx, place):
    handle = sbx.files.watch_dir(place)
    seen = []

    def saw(name, kind):
        def probe():
            seen.extend((e.name, e.type) for e in handle.get_new_events())
            return (name, kind) in seen

        wait_for(probe, 10, f"{kind} of {name} among {seen}")

    sbx.files.write(f"{place}/a", "1")
    saw("a", FilesystemEventType.CREATE)
    saw("a", FilesystemEventType.WRITE)
    sbx.commands.run("chmod 600 a", cwd=place)
    saw("a", FilesystemEventType.CHMOD)
    sbx.files.rename(f"{place}/a", f"{place}/b")
    saw("a", FilesystemEventType.RENAME)
    saw("b", FilesystemEventType.CREATE)
    sbx.files.remove(f"{place}/b")
    saw("b", FilesystemEventType.REMOVE)
    watcher = handle._watcher_id
    handle.stop()
    with server.edge(sbx) as edge:
        for method in ("GetWatcherEvents", "RemoveWatcher"):
            for one in (watcher, "none", ""):
                assert rpc.unary(edge, "filesystem.Filesystem", method, {"watcherId": one}).json()["code"] == "not_found"


def test_watch_is_not_recursive_unless_asked(sbx, place):
    sbx.files.make_dir(f"{place}/sub")
    flat, deep = sbx.files.watch_dir(place), sbx.files.watch_dir(place, recursive=True, include_entry=True)
    sbx.files.write(f"{place}/sub/f", "1")
    sbx.files.write(f"{place}/later/deeper/g", "2")
    sbx.files.write(f"{place}/mark", "3")
    seen = {}

    def probe():
        seen.update({e.name: e for e in deep.get_new_events() if e.type == FilesystemEventType.WRITE or e.name not in seen})
        return {"sub/f", "later/deeper/g", "mark"} <= seen.keys()

    wait_for(probe, 10, "all three files")
    assert seen["mark"].entry.path == f"{place}/mark"
    names = set()
    wait_for(lambda: names.update(e.name for e in flat.get_new_events()) or "mark" in names, 10)
    assert "sub/f" not in names and "later/deeper/g" not in names
    # A directory made after the watch began is watched too.
    sbx.files.write(f"{place}/later/deeper/h", "4")
    wait_for(lambda: any(e.name == "later/deeper/h" for e in deep.get_new_events()), 10)
    flat.stop(), deep.stop()


def test_watch_async(server, sbx, place):
    async def main():
        box = await AsyncSandbox.connect(sbx.sandbox_id)
        events, left = asyncio.Queue(), asyncio.Event()
        handle = await box.files.watch_dir(place, on_event=events.put_nowait, on_exit=lambda e: left.set(), recursive=True)
        await box.files.write(f"{place}/d/e", "x")
        names = set()
        while "d/e" not in names:
            names.add((await asyncio.wait_for(events.get(), 10)).name)
        await handle.stop()

    asyncio.run(main())


def test_watch_ends_with_its_time(server, sbx, place):
    async def main():
        box = await AsyncSandbox.connect(sbx.sandbox_id)
        left = asyncio.get_running_loop().create_future()
        await box.files.watch_dir(place, on_event=lambda e: None, on_exit=left.set_result, timeout=1)
        await asyncio.wait_for(left, 10)

    asyncio.run(main())


def test_watch_refusals(sbx, place):
    sbx.files.write(f"{place}/f", "")
    with pytest.raises(FileNotFoundException):
        sbx.files.watch_dir(f"{place}/none")
    with pytest.raises(InvalidArgumentException):
        sbx.files.watch_dir(f"{place}/f")


def test_a_watcher_nobody_reads_stays_small(sbx, place):
    handle = sbx.files.watch_dir(place)
    sbx.commands.run("for i in $(seq 20000); do echo > f$((i % 50)); done", cwd=place, timeout=100)
    rss = int(re.search(r"VmRSS:\s+(\d+)", sbx.commands.run("cat /proc/1/status").stdout)[1])
    assert rss < 64 * 1024
    try:
        assert len(handle.get_new_events()) <= 8192
    except RateLimitException as e:  # events were lost: told, and then it goes on
        assert "overflow" in str(e)
        handle.get_new_events()
    sbx.files.write(f"{place}/after", "")
    wait_for(lambda: any(e.name == "after" for e in handle.get_new_events()), 10, "it still works")
    handle.stop()


# -- signed URLs ------------------------------------------------------------------------------------------


def routed(server, box):
    return {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}


@pytest.mark.parametrize("with_headers", [True, False], ids=["routed", "plain"])
def test_signed_urls(server, sbx, place, with_headers):
    """A URL opened by anybody: with the routing headers, and (D.4 b) with nothing at all."""
    head = routed(server, sbx) if with_headers else {}
    path = f"{place}/ü n&ö.txt"
    up = sbx.upload_url(path)
    assert httpx.post(up, files={"file": ("ignored", b"signed")}, headers=head).status_code == 200
    assert sbx.files.read(path) == "signed"
    down = httpx.get(sbx.download_url(path), headers=head)
    assert (down.status_code, down.content) == (200, b"signed")
    for user, expected in (("root", "/root/x"), ("user", "/home/user/x")):
        assert httpx.post(sbx.upload_url("x", user=user), files={"file": ("x", b"1")}, headers=head).json()[0]["path"] == expected
    assert httpx.get(sbx.download_url(path, use_signature_expiration=60), headers=head).status_code == 200


def test_form_field_without_a_filename(server, sbx, place):
    body = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nplain field\r\n--b--\r\n'
    answer = httpx.post(
        sbx.upload_url(f"{place}/f"), content=body,
        headers={**routed(server, sbx), "Content-Type": "multipart/form-data; boundary=b"},
    )  # fmt: skip
    assert answer.status_code == 200 and sbx.files.read(f"{place}/f") == "plain field"


def test_signatures_are_checked(server, sbx, new_sandbox, place):
    sbx.files.write(f"{place}/f", "secret")
    url = sbx.download_url(f"{place}/f")
    head = routed(server, sbx)
    assert httpx.get(url, headers=head).content == b"secret"
    expired = httpx.get(sbx.download_url(f"{place}/f", use_signature_expiration=-10), headers=head)
    assert (expired.status_code, expired.json()) == (401, {"code": 401, "message": "signature is already expired"})
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query))

    def changed(**more):
        return f"{server.url}/files?" + urllib.parse.urlencode({**query, **more})

    for bad in (
        changed(path="/etc/passwd"), changed(username="root"), changed(signature="v1_AAAA"), changed(signature=""),
        changed(signature=query["signature"] + "="), changed(signature_expiration="99999999999"),
        changed(signature="v1_" + "A" * 40000), changed(signature="../../x"),
    ):  # fmt: skip
        for heads in (head, {}):
            answer = httpx.get(bad, headers=heads)
            assert answer.status_code in (400, 401, 404, 414, 431), (bad[:100], answer.status_code)
            assert b"secret" not in answer.content and b"root:" not in answer.content
    assert httpx.post(url, files={"file": ("f", b"x")}, headers=head).status_code == 401, "a read signature wrote"
    other = new_sandbox()
    assert httpx.get(url, headers=routed(server, other)).status_code == 401


def test_expired_and_turned_back_expirations(server, sbx, place):
    sbx.files.write(f"{place}/f", "x")
    url = sbx.download_url(f"{place}/f", use_signature_expiration=60)
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    for value in (str(int(query["signature_expiration"]) + 1000), "1e99", "-1", "0x7fffffff", "9" * 40, " "):
        answer = httpx.get(f"{server.url}/files", params={**query, "signature_expiration": value}, headers=routed(server, sbx))
        assert answer.status_code in (400, 401), value


# -- raw uploads: good, odd and broken ---------------------------------------------------------------------


def multipart(*parts, boundary="BOUND"):
    """(headers, content) pairs as a body."""
    body = b"".join(
        f"--{boundary}\r\n{head}\r\n\r\n".encode("utf-8", "surrogateescape") + content + b"\r\n" for head, content in parts
    )
    return body + f"--{boundary}--\r\n".encode()


def part(filename, name="file"):
    return f'Content-Disposition: form-data; name="{name}"; filename="{filename}"'


FORM = {"Content-Type": "multipart/form-data; boundary=BOUND"}


def test_multipart_several_files(server, sbx, place):
    with server.edge(sbx) as edge:
        body = multipart((part(f"{place}/1"), b"one"), (part(f"{place}/2"), b"two"))
        answer = edge.post("/files", content=body, headers=FORM)
        assert answer.status_code == 200
        assert [one["path"] for one in answer.json()] == [f"{place}/1", f"{place}/2"]
        assert sbx.files.read(f"{place}/2") == "two"
        twice = multipart((part(f"{place}/1"), b"a"), (part(f"{place}/1"), b"b"))
        assert edge.post("/files", content=twice, headers=FORM).status_code == 400


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "multipart/form-data"}, b"x"),
        ({"Content-Type": "multipart/form-data; boundary="}, b"x"),
        (FORM, b""),
        (FORM, b"--BOUND"),
        (FORM, b"--BOUND\r\n"),
        (FORM, b"--BOUND\r\nContent-Disposition: form-data"),
        (FORM, multipart((part("/tmp/cut"), b"x" * 5000))[:2000]),
        (FORM, b"--OTHER\r\n" + part("/tmp/x").encode() + b"\r\n\r\nx\r\n--OTHER--\r\n"),
        (FORM, b"--BOUND\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n\r\n--BOUND--\r\n"),
        ({"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}, b"not gzip"),
        ({"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}, gzip.compress(os.urandom(50000))[:20000]),
        ({"Content-Type": "application/octet-stream", "Content-Encoding": "br"}, b"x"),
        ({"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}, gzip.compress(b"x" * 1000)[:-4] + b"\0\0\0\0"),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_broken_uploads_are_400_and_leave_no_success(server, sbx, headers, body):
    with server.edge(sbx) as edge:
        answer = edge.post("/files", params={"path": "/tmp/broken"}, content=body, headers=headers)
        assert answer.status_code in (400, 413, 415), (answer.status_code, answer.text)
        assert answer.json()["code"] == answer.status_code and answer.json()["message"]
        assert edge.get("/health").status_code == 204


def test_oversized_multipart_bodies_stay_out_of_memory(server, sbx, place):
    """Very many parts, and a part header that never ends: refused or done, but never piled up."""
    before = server.rss_mib()[0]
    server.reset_peak()

    def endless_header():
        yield b"--BOUND\r\nContent-Disposition: form-data; name=\"file\"; filename=\""
        for _ in range(512):
            yield b"a" * 65536

    many = multipart(*((part(f"{place}/p{i % 100}-{i}"), b"x") for i in range(20_000)))
    with AgentMemory(sbx) as memory:
        for body in (many, endless_header()):
            try:
                with server.edge(sbx, timeout=60) as edge:
                    answer = edge.post("/files", content=body, headers=FORM)
                assert answer.status_code in (200, 400, 413), answer.text[:300]
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                pass  # it may stop reading
    assert memory.peak_mib < 64 and server.rss_mib()[1] - before < 64
    assert sbx.files.write(f"{place}/after", "fine").name == "after"


def test_upload_without_a_path(server, sbx):
    with server.edge(sbx) as edge:
        answer = edge.post("/files", content=b"x", headers={"Content-Type": "application/octet-stream"})
        assert answer.status_code == 400


def test_gzip_bomb_is_written_in_bounded_memory(server, sbx, place):
    """One GiB of zeros in one MiB: it may be written, but not held."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(1024)), packer.flush()])
    assert len(bomb) < 2 << 20
    before = server.rss_mib()[0]
    server.reset_peak()
    with AgentMemory(sbx) as memory, server.edge(sbx, timeout=100) as edge:
        head = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
        answer = edge.post("/files", params={"path": f"{place}/bomb"}, content=bomb, headers=head)
    assert answer.status_code == 200, answer.text
    assert sbx.files.get_info(f"{place}/bomb").size == 1 << 30
    assert memory.peak_mib < 64 and server.rss_mib()[1] - before < 64
    sbx.files.remove(f"{place}/bomb")


def test_truncated_upload_is_not_taken_for_whole(server, sbx, place):
    """The client promises 1000 bytes, sends 10 and goes."""
    import socket

    head = (
        f"POST /files?path={place}/cut HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {sbx.sandbox_id}\r\nE2b-Sandbox-Port: 49983\r\n"
        f"X-Access-Token: {sbx._envd_access_token}\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(head.encode() + b"0123456789")
        s.shutdown(socket.SHUT_WR)
        answer = s.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert sbx.files.write(f"{place}/next", "fine").name == "next"


# -- large ----------------------------------------------------------------------------------------------------


class AgentMemory:
    """Samples the agent's resident memory from inside while something large happens."""

    def __init__(self, box):
        self.box, self.peak_mib, self.stop = box, 0.0, threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self.stop.wait(0.5):
            text = self.box.files.read("/proc/1/status")
            self.peak_mib = max(self.peak_mib, int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def chunks(total, size=1 << 20):
    """`total` bytes, each MiB different from the one before, made as they are sent."""
    block = bytearray(os.urandom(size))
    for i in range(total // size):
        block[:8] = i.to_bytes(8, "big")
        yield bytes(block)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_five_gib_both_ways_in_bounded_memory(server, new_sandbox):
    box = new_sandbox(timeout=900)
    total = 5 << 30
    before = server.rss_mib()[0]
    server.reset_peak()
    with AgentMemory(box) as memory:
        box.files.write("/home/user/big", chunks(total), request_timeout=280)
        assert box.files.get_info("/home/user/big").size == total
        assert box.commands.run("dd if=big bs=1M skip=5000 count=1 status=none | head -c 8 | od -An -tx1").stdout.split() == [
            f"{b:02x}" for b in (5000).to_bytes(8, "big")
        ]
        box.files.remove("/home/user/big")
        box.commands.run("truncate -s 5G hole && printf end | dd of=hole bs=1 seek=5368709117 conv=notrunc status=none")
        size, tail = 0, b""
        for chunk in box.files.read("/home/user/hole", format="stream"):
            size += len(chunk)
            tail = chunk[-3:]
        assert (size, tail) == (total, b"end")
    assert memory.peak_mib < 96, f"agent peaked at {memory.peak_mib:.0f} MiB"
    grown = server.rss_mib()[1] - before
    assert grown < 96, f"server grew by {grown:.0f} MiB"


def test_hash_of_a_hundred_mebibytes(sbx, place):
    digest = hashlib.sha256()

    def hashed():
        for one in chunks(100 << 20):
            digest.update(one)
            yield one

    sbx.files.write(f"{place}/h", hashed())
    assert sbx.commands.run(f"sha256sum {place}/h").stdout.split()[0] == digest.hexdigest()
    back = hashlib.sha256()
    for one in sbx.files.read(f"{place}/h", format="stream"):
        back.update(one)
    assert back.hexdigest() == digest.hexdigest()
    sbx.files.remove(f"{place}/h")


# -- names and links ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["with space", "quo'te\"", "new\nline", "tab\t", "-rf", "ünï☃😀", "a" * 255, "%2e%2e", "%00", "semi;colon&amp", "back\\slash",
     "..hidden", "...", "~", "$HOME", "*", "рaypal", "e\u0301", "\u202egpj.exe", "ctrl\x01\x1b[31m"],
    ids=lambda n: repr(n)[:20],
)  # fmt: skip
def test_odd_names_are_just_names(sbx, place, name):
    path = f"{place}/{name}"
    for octet in (True, False):
        if not octet and any(c in name for c in '"\n\r'):
            continue  # cannot be written in a form's header without an escape of its own
        assert sbx.files.write(path, name, use_octet_stream=octet).path == path
        assert sbx.files.read(path) == name
    assert [e.name for e in sbx.files.list(place)] == [name]
    assert sbx.files.get_info(path).name == name
    sbx.files.rename(path, f"{place}/x")
    assert sbx.files.read(f"{place}/x") == name


@pytest.mark.parametrize("path", ["/tmp/nul\0byte", "/tmp/" + "a" * 256, "/tmp/" + "d/" * 3000 + "f", "x" * 40000, "/proc/none/x"], ids=lambda p: repr(p)[:24])
def test_impossible_paths_are_refused(server, sbx, path):
    for call in (
        lambda: sbx.files.write(path, "x", use_octet_stream=True),
        lambda: sbx.files.make_dir(path),
        lambda: sbx.files.read(path),
        lambda: sbx.files.list(path),
        lambda: sbx.files.get_info(path),
    ):
        with pytest.raises(Exception) as caught:
            call()
        assert "500" not in str(caught.value)[:4], caught.value
    assert sbx.commands.run("echo fine").stdout == "fine\n"


def test_dotdot_stays_what_the_filesystem_says(sbx, place):
    sbx.files.write(f"{place}/sub/../up", "1")
    assert sbx.files.read(f"{place}/up") == "1"
    assert sbx.files.read("/../../../etc/hostname") == sbx.files.read("/etc/hostname")


def test_percent_encoding_is_decoded_once(server, sbx, place):
    with server.edge(sbx) as edge:
        for sent, expected in (("%2525", "%25"), ("a%252e%252e", "a%2e%2e")):
            answer = edge.post(f"/files?path={place}/{sent}", content=b"x", headers={"Content-Type": "application/octet-stream"})
            assert answer.json()[0]["name"] == expected
        assert edge.post("/files?path=%00", content=b"", headers={"Content-Type": "application/octet-stream"}).status_code == 400
        assert edge.get("/files?path=%ff%fe").status_code in (400, 404)
        assert edge.get("/files").status_code == 400
        assert edge.get("/files?path=").status_code == 400
        assert edge.get("/files?path=/etc/hostname&path=/etc/passwd").status_code in (200, 400)


def test_links_are_followed_where_they_lead_and_stay_links(sbx, place):
    sbx.files.write(f"{place}/real/file", "1")
    sbx.commands.run("ln -s real dir; ln -s real/file link; ln -s later/made dangling; ln -s a b; ln -s b a; ln -s link chain", cwd=place)
    for way in ("link", "dir/file", "chain"):
        sbx.files.write(f"{place}/{way}", f"by {way}")
        assert sbx.files.read(f"{place}/real/file") == f"by {way}"
    assert sbx.commands.run("test -L link && test -L dir && test -L chain && echo links", cwd=place).stdout == "links\n"
    for bad in ("a", "b", "a/x"):
        for call in (
            lambda: sbx.files.write(f"{place}/{bad}", "x"),
            lambda: sbx.files.read(f"{place}/{bad}"),
            lambda: sbx.files.list(f"{place}/{bad}"),
            lambda: sbx.files.make_dir(f"{place}/{bad}/y"),
        ):
            with pytest.raises((SandboxException, InvalidArgumentException)):
                call()
    sbx.files.rename(f"{place}/link", f"{place}/moved")
    assert sbx.commands.run("readlink moved", cwd=place).stdout == "real/file\n", "a link is moved, not what it points to"
    sbx.files.remove(f"{place}/dir")
    assert sbx.files.exists(f"{place}/real/file"), "a link is removed, not what it points to"


def test_links_to_the_agents_own_things_show_no_secret(server, sbx, place):
    """PID 1 is the agent: its environment, arguments, descriptors and root say nothing about the host."""
    sbx.commands.run("ln -s /proc/1/environ e; ln -s /proc/1/cmdline c; ln -s /proc/1/fd f; ln -s /proc/1/root r; ln -s /proc/self/fd/0 in", cwd=place)
    with server.edge(sbx, timeout=10) as edge:
        for name in ("e", "c", "f/0", "f/1", "f/2", "in", "r/proc/1/environ", "r/../../../etc/shadow-"):
            answer = edge.get("/files", params={"path": f"{place}/{name}"})
            text = answer.text.lower()
            assert "control_secret" not in text and str(server.state) not in text, name
            assert sbx._envd_access_token not in answer.text, name
        assert edge.get("/health").status_code == 204
    assert sbx.commands.run("ls -d r/etc r/work r/var/lib/hearth* r/var/cache/hearth 2>/dev/null || true", cwd=place, user="root").stdout == "r/etc\n"


def test_a_link_swapped_during_uploads(sbx, place):
    """The classic race: a directory and a link take turns while files are written below it.

    Every upload that reports success is there, whole, in one of the two places.
    """
    sbx.files.make_dir(f"{place}/other")
    handle = sbx.commands.run(
        "while :; do rm -rf p; ln -s other p; rm -f p; mkdir -p keep; ln -s keep p; rm -f p; mkdir p; done", cwd=place, background=True, timeout=60
    )
    try:
        for i in range(60):
            try:
                sbx.files.write(f"{place}/p/race{i}", "whole", use_octet_stream=True)
            except (SandboxException, InvalidArgumentException):
                pass
    finally:
        handle.kill()
    out = sbx.commands.run("cat other/race* keep/race* 2>/dev/null | sed 's/whole//g' | wc -c", cwd=place).stdout.strip()
    assert out == "0", "a file is neither whole nor absent"
    left = sbx.commands.run("find . -name '.*' -type f | head", cwd=place).stdout
    assert not left, f"temporary files are left: {left}"
    assert sbx.files.write(f"{place}/after", "fine").name == "after"


def test_special_files_do_not_hang_anybody(server, sbx, place):
    sbx.commands.run("mkfifo pipe; ln -s /dev/zero zero", cwd=place)
    with server.edge(sbx, timeout=10) as edge:
        for call in (
            lambda: edge.get("/files", params={"path": f"{place}/pipe"}),
            lambda: edge.post("/files", params={"path": f"{place}/pipe"}, content=b"x", headers={"Content-Type": "application/octet-stream"}),
        ):
            assert 400 <= call().status_code < 500
        with edge.stream("GET", "/files", params={"path": f"{place}/zero"}) as response:
            if response.status_code == 200:  # endless, and the client leaves in the middle
                for chunk in response.iter_raw():
                    assert not chunk.strip(b"\0")
                    break
        assert edge.get("/health").status_code == 204
        entries = rpc.unary(edge, "filesystem.Filesystem", "ListDir", {"path": place}).json()["entries"]
    assert [e["name"] for e in entries] == ["pipe", "zero"]


@pytest.mark.parametrize("method", ["Stat", "ListDir", "MakeDir", "Move", "Remove", "CreateWatcher", "GetWatcherEvents", "RemoveWatcher"])
def test_malformed_filesystem_calls(server, sbx, method):
    fields = ["watcherId"] if "Events" in method or method == "RemoveWatcher" else ["source", "destination"] if method == "Move" else ["path"]
    bodies = [b"", b"{", b"[1]", b"null", b"\xff", b'"x"']
    for value in (b"5", b'{"a":1}', b'["x"]', b'"\\u0000"', b'"\\ud800"', b"true"):
        bodies.append(b"{" + b",".join(b'"%s":%s' % (field.encode(), value) for field in fields) + b"}")
    with server.edge(sbx) as edge:
        for body in bodies:
            answer = rpc.unary(edge, "filesystem.Filesystem", method, body)
            assert answer.status_code in (400, 404), (method, body, answer.status_code, answer.text)
            assert answer.json()["code"] in ("invalid_argument", "not_found")
        assert edge.get("/health").status_code == 204


def test_async_files(server, sbx, place):
    async def main():
        box = await AsyncSandbox.connect(sbx.sandbox_id)

        async def body():
            for i in range(100):
                yield b"%03d" % i

        await box.files.write(f"{place}/a", body())
        assert (await box.files.read(f"{place}/a")).startswith("000001")
        stream = await box.files.read(f"{place}/a", format="stream")
        assert len(b"".join([c async for c in stream])) == 300
        assert [e.name for e in await box.files.list(place)] == ["a"]
        assert await box.files.make_dir(f"{place}/d")
        assert (await box.files.rename(f"{place}/a", f"{place}/d/a")).name == "a"
        assert await box.files.exists(f"{place}/d/a")
        await box.files.remove(f"{place}/d")
        assert not await box.files.exists(f"{place}/d")

    asyncio.run(main())


def test_files_belong_to_one_sandbox(sbx, new_sandbox):
    sbx.files.write("/home/user/mine", "1")
    other = new_sandbox()
    assert not other.files.exists("/home/user/mine")
    assert Sandbox.connect(sbx.sandbox_id).files.read("/home/user/mine") == "1"
