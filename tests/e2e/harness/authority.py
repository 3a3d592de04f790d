"""A certificate authority of the test run, and a certificate by it for `public.test`.

What an operator does who runs a private authority: its certificate is put where the host's
own is added. `installed` does that for as long as a server starts.
"""

import contextlib
import os
import pathlib

from .netns import PUBLIC, sh

HOST_FOLDER = pathlib.Path("/usr/local/share/ca-certificates")
INSTALLED = HOST_FOLDER / f"hearth-test-{os.getpid()}.crt"


def make(folder):
    """Writes ca.pem, and cert.pem with key.pem signed by it."""
    folder.mkdir(parents=True, exist_ok=True)
    at = lambda name: str(folder / name)  # noqa: E731
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    sh(*new, "-x509", "-subj", "/CN=Hearth test authority", "-keyout", at("ca.key"), "-out", at("ca.pem"),
       "-addext", "basicConstraints=critical,CA:true")  # fmt: skip
    sh(*new, "-subj", "/CN=public.test", "-keyout", at("key.pem"), "-out", at("request.pem"))
    (folder / "names").write_text(f"subjectAltName=DNS:public.test,IP:{PUBLIC}\n")
    sh("openssl", "x509", "-req", "-in", at("request.pem"), "-CA", at("ca.pem"), "-CAkey", at("ca.key"), "-days", "2",
       "-CAcreateserial", "-extfile", at("names"), "-out", at("cert.pem"))  # fmt: skip


@contextlib.contextmanager
def installed(folder):
    HOST_FOLDER.mkdir(parents=True, exist_ok=True)
    INSTALLED.write_bytes((folder / "ca.pem").read_bytes())
    try:
        yield
    finally:
        INSTALLED.unlink()


def clear():
    """Removes what killed runs left."""
    for path in HOST_FOLDER.glob("hearth-test-*.crt"):
        if not pathlib.Path(f"/proc/{path.stem.rsplit('-', 1)[1]}").exists():
            path.unlink()
