"""What a sandbox may reach and what it must not, by every protocol.

Every refusal first shows that the same request succeeds from the host namespace, against
a listener that is really there. The world also notes every packet that reaches it, so
"refused" means that nothing arrived, not only that no answer came back.
"""

import subprocess
import uuid

import httpx
import pytest
from e2b import Sandbox

from harness import hostside, netns, world
from harness.guest import all_allowed_here, allowed_here, install, probe, probe_many, serve
from harness.wait import wait_for

ADMIN = f"http://{world.ADMIN[0]}:{world.ADMIN[1]}"


def packets(**like):
    """Packets that reached the world and look like this."""
    seen = httpx.get(f"{ADMIN}/packets").json()
    return [p for p in seen if all(p.get(k) == v for k, v in like.items())]


def carried(text):
    """Packets that reached the world with this text in them."""
    return [p for p in httpx.get(f"{ADMIN}/packets").json() if text.encode().hex() in p["data"]]


def queries(name):
    return [q for q in httpx.get(f"{ADMIN}/queries").json() if q["name"] == name]


def refused(box, *args, user="user"):
    answer = probe(box, *args, user=user)
    assert not answer["ok"], f"a sandbox reached {args}: {answer['got'][:300]}"
    return answer["got"]


def none_reached(box, requests, user):
    for one, answer in zip(requests, probe_many(box, requests, user=user)):
        assert not answer["ok"], f"a sandbox reached {one}: {answer['got'][:300]}"


@pytest.fixture(scope="module")
def closed(server):
    """A sandbox without internet access."""
    box = Sandbox.create(timeout=3600, allow_internet_access=False)
    yield box
    box.kill()


@pytest.fixture(scope="module")
def neighbour(server):
    """Another sandbox, with servers that answer when they are asked."""
    box = Sandbox.create(timeout=3600)
    serve(box, "http_server.py", "0.0.0.0", 8000)
    yield box
    box.kill()


def address_of(box):
    """The sandbox's own address, as it sees it."""
    out = box.commands.run("ip -4 -o addr show dev eth0").stdout
    return out.split("inet ")[1].split("/")[0]


def gateway_of(box):
    return box.commands.run("ip route show default").stdout.split("via ")[1].split()[0]


# -- open by default ----------------------------------------------------------------------


def test_internet_is_open_by_default(sbx):
    for args in (
        ("tcp", netns.PUBLIC, world.HTTP), ("tcp", netns.PUBLIC, world.HTTP_ALT), ("udp", netns.PUBLIC, world.ECHO_UDP, "hi"),
    ):  # fmt: skip
        allowed_here(*args)
        answer = probe(sbx, *args)
        assert answer["ok"], answer


def test_names_resolve_from_the_first_moment(new_sandbox):
    box = new_sandbox()
    out = box.commands.run("curl -s --max-time 5 http://public.test/first").stdout
    assert '"path": "/first"' in out
    assert probe(box, "dns", "public.test")["got"] == [netns.PUBLIC]
    assert not probe(box, "dns", "no-such-name.test")["ok"]
    assert box.commands.run("getent hosts $(hostname)").stdout.strip()
    assert box.commands.run("getent hosts localhost").stdout.strip()


def test_large_dns_answers_come_over_tcp(sbx):
    allowed_here("dnsat", netns.DNS, "public.test", "tcp")
    script = (
        "import socket,struct;"
        "ns=[l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver')][0];"
        "q=struct.pack('>HHHHHH',1,256,1,0,0,0)+b'\\x03big\\x04test\\0'+struct.pack('>HH',16,1);"
        "s=socket.create_connection((ns,53),5);s.sendall(struct.pack('>H',len(q))+q);"
        "n=struct.unpack('>H',s.recv(2))[0];d=b''\n"
        "while len(d)<n: d+=s.recv(65536)\n"
        "print(n)"
    )
    assert int(sbx.commands.run(f"python3 -S -c \"{script}\"").stdout) > 7000


def test_the_internet_sees_the_host_not_the_sandbox(sbx):
    answer = probe(sbx, "tcp", netns.PUBLIC, world.HTTP, "/who")
    assert f'"peer": "{netns.HOST_ADDR}"' in answer["got"]


def test_large_transfers_pass(sbx):
    out = sbx.commands.run(f"curl -s --max-time 60 'http://{netns.PUBLIC}/bytes?n=104857600' | wc -c", timeout=90).stdout
    assert out.strip() == "104857600"


def test_a_big_packet_passes_in_pieces(sbx):
    assert probe(sbx, "udp", netns.PUBLIC, world.ECHO_UDP, "x" * 4000)["got"] == "x" * 4000


# -- without internet ---------------------------------------------------------------------------


def test_closed_internet_is_reported(closed, sbx):
    assert closed.get_info().allow_internet_access is False
    assert sbx.get_info().allow_internet_access in (True, None)


@pytest.mark.parametrize("user", ["user", "root"])
def test_closed_internet_refuses(closed, user):
    requests = [
        ["tcp", netns.PUBLIC, world.HTTP],
        ["tcp", netns.PUBLIC, world.HTTP_ALT],
        ["udp", netns.PUBLIC, world.ECHO_UDP, "hi"],
        ["icmp", netns.PUBLIC, "x" * 20],
        ["dnsat", netns.DNS, "public.test", "udp"],
        ["dnsat", netns.DNS, "public.test", "tcp"],
        ["dnsat", netns.PUBLIC, "public.test", "udp"],
    ]
    all_allowed_here(requests)
    before = [len(packets(dst=addr)) for addr in (netns.PUBLIC, netns.DNS)]
    none_reached(closed, requests, user)
    assert [len(packets(dst=addr)) for addr in (netns.PUBLIC, netns.DNS)] == before, "something of it reached the world"


def test_closed_internet_cannot_carry_data_out_in_names(closed, sbx):
    leak = f"secret{uuid.uuid4().hex[:8]}.public.test"
    probe(sbx, "dns", leak)
    assert queries(leak), "an open sandbox's query does reach the world"
    leak = f"secret{uuid.uuid4().hex[:8]}.public.test"
    assert not probe(closed, "dns", leak)["ok"]
    closed.commands.run(f"getent hosts {leak} || curl -m 3 -s http://{leak}/ || true", user="root")
    assert not queries(leak), "a closed sandbox asked the world's DNS"


def test_closed_internet_still_serves_the_sdk(server, closed):
    assert closed.commands.run("echo works").stdout == "works\n"
    assert closed.commands.run("getent hosts localhost").stdout.strip()
    serve(closed, "http_server.py", "0.0.0.0", 8000)
    with server.edge(closed, 8000) as edge:
        assert edge.get("/").text == "hello\n"


# -- never reachable: addresses ---------------------------------------------------------------------


FORBIDDEN = [netns.METADATA, netns.LINK_LOCAL, *netns.LAN]


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("addr", FORBIDDEN)
def test_link_local_metadata_and_private_addresses(sbx, addr, user):
    """TCP, UDP, ICMP and DNS at once: each works from the host namespace, none from a sandbox."""
    text = f"m{uuid.uuid4().hex[:12]}"
    requests = [
        ["tcp", addr, world.HTTP, f"/{text}"],
        ["tcp", addr, world.HTTP_ALT, f"/{text}"],
        ["tcp", addr, world.HTTP, "/latest/meta-data/iam/security-credentials/"],
        ["udp", addr, world.ECHO_UDP, text],
        ["udp", addr, world.ECHO_UDP, text * 200],
        ["icmp", addr, text],
    ]
    if addr == netns.METADATA:
        requests += [["dnsat", addr, "public.test", how] for how in ("udp", "tcp")]
    all_allowed_here(requests)
    before = len(packets(dst=addr))
    none_reached(sbx, requests, user)
    assert len(packets(dst=addr)) == before, "something of it reached the world"


def test_names_that_point_to_forbidden_addresses(sbx):
    """DNS may answer what it likes; the connection is what is refused."""
    for name, addr in (("metadata.test", netns.METADATA), ("lan.test", netns.LAN[0]), ("host.test", netns.HOST_ADDR)):
        assert sbx.commands.run("curl -s --max-time 3 http://public.test/ -o /dev/null -w '%{http_code}'").stdout == "200"
        before = len(packets(dst=addr, dport=80))
        out = sbx.commands.run(f"curl -s --max-time 3 http://{name}/ || echo refused $?").stdout
        assert "refused" in out and "world" not in out
        assert len(packets(dst=addr, dport=80)) == before


@pytest.mark.parametrize(
    "text", ["2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]"]
)
def test_other_spellings_of_the_metadata_address(sbx, text):
    """The first shows that curl here takes the spelling for the address it stands for."""
    there = subprocess.run(["curl", "-s", "--max-time", "3", f"http://{text}/"], capture_output=True, text=True)
    if "world" not in there.stdout:
        pytest.skip("curl does not take this spelling")
    before = len(packets(dst=netns.METADATA))
    out = sbx.commands.run(f"curl -s --max-time 3 'http://{text}/' || echo refused").stdout
    assert "refused" in out and "world" not in out
    assert len(packets(dst=netns.METADATA)) == before


# -- never reachable: the host ---------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("where", ["uplink", "gateway", "network", "broadcast"])
def test_the_host(sbx, where, user):
    addr = {"uplink": netns.HOST_ADDR, "gateway": gateway_of(sbx), "network": "10.39.0.1", "broadcast": "255.255.255.255"}[where]
    requests = [
        ["tcp", addr, hostside.HTTP, "/host"],
        ["udp", addr, hostside.UDP, "host"],
        ["icmp", addr, "x" * 20],
        ["tcp", addr, hostside.CONTROL, "/health"],
        ["tcp", addr, 3000, "/health"],
    ]
    there = addr if where != "broadcast" else netns.HOST_ADDR
    all_allowed_here([[kind, there, *more] for kind, _, *more in requests[:4]] + [["tcp", "127.0.0.1", 3000, "/health"]])
    none_reached(sbx, requests, user)


def test_the_hosts_loopback(sbx):
    """127.0.0.1 inside is the sandbox's own, and routing it to the gateway gains nothing."""
    allowed_here("tcp", "127.0.0.1", 3000, "/health")
    refused(sbx, "tcp", "127.0.0.1", 3000, "/health")
    refused(sbx, "tcp", "0.0.0.0", 3000, "/health")
    gateway = gateway_of(sbx)
    sbx.commands.run(f"ip route add 127.0.0.2/32 via {gateway} || true", user="root")
    refused(sbx, "tcp", "127.0.0.2", 3000, "/health", user="root")


def test_every_port_of_the_gateway_but_dns(sbx):
    """A walk over ports: only the resolver may answer, and only if it is there."""
    gateway = gateway_of(sbx)
    script = (
        "import socket\nopen_ports=[]\n"
        "for p in [1,22,53,80,111,443,3000,5000,8080,9000,18080,18090,49982,49983,*range(30000,30050)]:\n"
        " s=socket.socket();s.settimeout(0.3)\n"
        f" open_ports+=[p] if s.connect_ex(('{gateway}',p))==0 else []\n s.close()\n"
        "print(open_ports)"
    )
    out = sbx.commands.run(f'python3 -S -c "{script}"', timeout=60).stdout.strip()
    assert out in ("[]", "[53]"), out


# -- never reachable: other sandboxes -------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["user", "root"])
def test_another_sandbox(server, sbx, neighbour, user):
    addr = address_of(neighbour)
    assert addr != address_of(sbx)
    requests = [
        ["tcp", addr, 8000, "/"],
        ["tcp", addr, 49983, "/health"],
        ["tcp", addr, 49982, "/health"],
        ["udp", addr, 8000, "x"],
        ["icmp", addr, "x" * 20],
    ]
    there = [requests[0], requests[1], requests[4]]  # the host may, and so may the sandbox itself
    all_allowed_here(there)
    assert all(a["ok"] for a in probe_many(neighbour, there, user="root"))
    none_reached(sbx, requests, user)


def test_no_two_sandboxes_see_each_other_on_the_link(sbx, neighbour):
    """Neighbours in ARP, and addresses next to one's own."""
    mine = address_of(sbx)
    a, b, c, d = (int(x) for x in mine.split("."))
    for near in {d - 2, d - 1, d + 1, d + 2, d + 4} - {d}:
        if 0 < near < 255:
            refused(sbx, "tcp", f"{a}.{b}.{c}.{near}", 49983, "/health", user="root")


# -- IPv6 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("addr", [netns.PUBLIC6, netns.WORLD_ADDR6, netns.HOST_ADDR6])
def test_ipv6_is_no_way_around(sbx, closed, addr):
    """IPv6 is not routed for sandboxes: nothing of the host, and nothing for a closed sandbox."""
    port = hostside.HTTP if addr == netns.HOST_ADDR6 else world.HTTP
    allowed_here("tcp", addr, port)
    for box in (closed, sbx) if addr != netns.PUBLIC6 else (closed,):
        before = len(packets(dst=addr))
        for user in ("user", "root"):
            refused(box, "tcp", addr, port, user=user)
        assert len(packets(dst=addr)) == before


def test_ipv6_link_local_neighbours(sbx):
    out = sbx.commands.run("ip -6 -o addr show dev eth0 2>/dev/null || true", user="root").stdout
    for line in out.splitlines():
        assert "fe80" in line, f"a routed IPv6 address: {line}"
    out = sbx.commands.run("ping -6 -c 1 -W 2 ff02::1%eth0 2>&1 || true", user="root").stdout
    assert "bytes from" not in out.replace("from fe80::", "")


# -- forging -------------------------------------------------------------------------------------------------------


def test_a_forged_source_goes_nowhere(new_sandbox, neighbour):
    """A packet with another's address: possible from the host, dropped from a sandbox."""
    sbx = new_sandbox()
    target = netns.PUBLIC
    own, other = address_of(sbx), address_of(neighbour)
    sent = f"f{uuid.uuid4().hex[:12]}"
    allowed_here("spoof", "192.0.2.77", target, 9, sent)
    wait_for(lambda: carried(sent), 5, "the host's forged packet reached the world")
    own_text = f"o{uuid.uuid4().hex[:12]}"
    assert probe(sbx, "udp", target, world.ECHO_UDP, own_text, user="root")["ok"]
    wait_for(lambda: carried(own_text), 5, "an honest packet reached the world")
    for how in ("spoof", "bind"):
        for source in (other if other != own else "10.39.200.200", "192.0.2.77", netns.HOST_ADDR, netns.METADATA, "127.0.0.1"):
            text = f"s{uuid.uuid4().hex[:12]}"
            probe(sbx, how, source, target, 9, text, user="root")
            # A later honest datagram has arrived: so would the forged one have.
            sbx.commands.run(f"ip addr del {source}/32 dev eth0 2>/dev/null || true", user="root")
            assert probe(sbx, "udp", target, world.ECHO_UDP, "later", user="root")["ok"]
            leaked = carried(text)
            assert not [p for p in leaked if p["src"] != netns.HOST_ADDR], leaked
            if how == "spoof":
                assert not leaked, f"forged as {source}: {leaked}"


def test_root_inside_cannot_take_the_address_of_another(server, new_sandbox, neighbour):
    """After taking the neighbour's address, the edge still reaches the neighbour."""
    sbx = new_sandbox()
    other = address_of(neighbour)
    sbx.commands.run(f"ip addr add {other}/32 dev eth0 || true", user="root")
    install(sbx, "http_server.py")
    with server.edge(neighbour, 8000) as edge:
        assert edge.get("/").text == "hello\n"
    assert neighbour.commands.run("echo mine").stdout == "mine\n"


def test_a_flood_of_connections_from_one_sandbox_leaves_the_others_alone(server, new_sandbox, neighbour):
    box = new_sandbox()
    script = (
        "import socket\nheld=[]\n"
        "for i in range(2000):\n"
        " s=socket.socket();s.setblocking(False)\n"
        f" s.connect_ex(('{netns.PUBLIC}',{world.ECHO_TCP}));held.append(s)\n"
        "print(len(held))"
    )
    out = box.commands.run(f'ulimit -n 4096; python3 -S -c "{script}" || true', timeout=60, user="root").stdout
    assert out.strip() in ("2000", ""), out
    assert probe(neighbour, "tcp", netns.PUBLIC, world.HTTP)["ok"]
    assert neighbour.commands.run("echo fine").stdout == "fine\n"


def test_capabilities_inside_do_not_reach_the_hosts_network(sbx):
    """Root inside may change its own stack; the host's rules stay what they are."""
    before = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True).stdout
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout
    sbx.commands.run("nft flush ruleset; iptables -F; ip link set lo down; ip link set lo up; true", user="root")
    assert subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True).stdout == before
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout == links
    refused(sbx, "tcp", netns.METADATA, world.HTTP, user="root")
