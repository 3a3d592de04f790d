"""The agent's Connect protocol by hand, for what the SDK would not send."""

import base64
import json
import struct


def envelope(message, flags=0):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def unary(client, service, method, message, **headers):
    """One unary call; the answer as it came."""
    return client.post(
        f"/{service}/{method}",
        content=message if isinstance(message, bytes) else json.dumps(message).encode(),
        headers={"Content-Type": "application/json", "Connect-Protocol-Version": "1", **headers},
    )


def open_stream(client, service, method, message, **headers):
    """A server stream, as a context manager of the response."""
    return client.stream(
        "POST",
        f"/{service}/{method}",
        content=envelope(message),
        headers={"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", **headers},
    )


def messages(response):
    """The (flags, message) pairs of a stream, until it ends."""
    buffer = b""
    for chunk in response.iter_raw():
        buffer += chunk
        while len(buffer) >= 5:
            flags, size = struct.unpack(">BI", buffer[:5])
            if len(buffer) < 5 + size:
                break
            yield flags, json.loads(buffer[5 : 5 + size] or b"{}")
            buffer = buffer[5 + size :]


def start(client, cmd, args=(), **more):
    """The stream of `process.Process/Start`."""
    headers = more.pop("headers", {})
    message = {"process": {"cmd": cmd, "args": list(args), **more.pop("process", {})}, **more}
    return open_stream(client, "process.Process", "Start", message, **headers)


def run(client, cmd, args=(), **more):
    """Runs to the end: (stdout, stderr, end event, end-of-stream message)."""
    out, err, end, last = b"", b"", None, None
    with start(client, cmd, args, **more) as response:
        assert response.status_code == 200, response.read()
        for flags, message in messages(response):
            if flags & 2:
                last = message
                continue
            event = message.get("event", {})
            data = event.get("data", {})
            out += base64.b64decode(data.get("stdout", ""))
            err += base64.b64decode(data.get("stderr", ""))
            end = event.get("end", end)
    return out, err, end, last
