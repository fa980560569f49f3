"""Four machines with a real systemd, set up line by line as docs/four-machines.md says, and then mistreated.

They talk over a network with TLS and tokens. Every test leaves training running for the next one; the last ones take
the installation away.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests.deploy.cluster import PAGE, PIP_FROM_FOLDER, RUN, SERVICES, UNITS, Cluster, four_machines, numbered
from tests.deploy.machines import Machine, missing_tools, sweep

HERE = Path(__file__).parent
LEARNER = "learner"
STOP_S = 10.0
BAR = 0.9
RUNTIME_UNITS = "/run/systemd/system"
_ALL_THERE = f"test -s {RUN}/staleness.jsonl -a -s {RUN}/evaluations.jsonl"  # what the page reads next


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lacks = missing_tools()
    if lacks:
        pytest.fail(f"NOT TESTED: systemd; this machine lacks {', '.join(lacks)}")
    sweep()
    with four_machines(tmp_path_factory.mktemp("systemd")) as made:
        steps = numbered(made.steps)
        made.follow([step for step in steps if step.heading < "6"])
        made.until(
            lambda: made.updates() > 0 and made[LEARNER].run(f"{_ALL_THERE} && echo yes", check=False), "it trains", 120
        )
        made.follow([step for step in steps if step.heading >= "6"])
        yield made


def _drop_in(machine: Machine, unit: str, text: str) -> None:
    """Change a unit until the machine's next start."""
    machine.run(f"mkdir -p {RUNTIME_UNITS}/{unit}.service.d")
    machine.run(f"cat > {RUNTIME_UNITS}/{unit}.service.d/test.conf <<'CONF'\n{text}\nCONF\nsystemctl daemon-reload")


def _undo_drop_in(machine: Machine, unit: str) -> None:
    machine.run(f"rm -r {RUNTIME_UNITS}/{unit}.service.d; systemctl daemon-reload")


def test_the_page_sets_everything_up(cluster: Cluster) -> None:
    assert PAGE.read_text().count("```bash") == len(cluster.steps)
    assert "is installed in /opt/shoal, its command is /usr/local/bin/shoal" in cluster.said["2. Install replay"]
    looked = cluster.said["6. Look replay"]
    assert "replay:7401 is healthy" in looked
    assert "learner:7402 is healthy" in looked
    assert "holds" in looked
    cluster.all_up()
    cluster.trains_on()


def test_the_policy_reaches_the_bar(cluster: Cluster) -> None:
    cluster.until(lambda: cluster.success() >= BAR, f"a success rate of {BAR:.0%}", 240)


def test_systemctl_and_the_journal_say_how_each_service_is(cluster: Cluster) -> None:
    says = {
        "shoal-replay@0": " items",
        "shoal-learner": " of 200000 updates",
        "shoal-evaluator": " rounds",
        "shoal-actor@0": " steps acknowledged",
    }
    for machine, unit in SERVICES:
        assert 'Status: "' in cluster[machine].run(f"systemctl status --no-pager {unit}")
        cluster.until(
            lambda m=machine, u=unit: says[u] in cluster.show(m, u, "StatusText"), f"{unit} says how it is", 30
        )
        lines = cluster[machine].run(f"journalctl -u {unit} SYSLOG_IDENTIFIER=shoal --no-pager -o cat").splitlines()
        assert lines
        facts = [json.loads(line) for line in lines]
        assert {fact["run"] for fact in facts} == {"four-machines"}
        assert {fact["service"] for fact in facts} == {unit.split("-", 1)[1].split("@")[0]}


def test_lines_for_people_are_a_setting_of_the_machine(cluster: Cluster) -> None:
    box = cluster["actor2"]
    box.run("echo SHOAL_LOG__STYLE=console > /etc/shoal/shoal.env; systemctl restart shoal-actor@0")
    newest = "journalctl -u shoal-actor@0 _PID=$(systemctl show -p MainPID --value shoal-actor@0) --no-pager -o cat"
    cluster.until(lambda: "info    actor starts name=actor-0-actor2" in box.run(newest), "a line for people", 30)
    box.run(": > /etc/shoal/shoal.env; systemctl restart shoal-actor@0")


def test_prometheus_has_the_metrics_of_all_services(cluster: Cluster) -> None:
    targets = {"replay:9401", "learner:9402", "learner:9403", "actor1:9404", "actor2:9404"}
    cluster.until(lambda: {t for t, up in cluster.query("up{job='shoal'}").items() if up} == targets, "all are up", 60)
    assert cluster.query("shoal_learner_updates_total > 0").keys() == {"learner:9402"}
    expires = cluster.query(
        "(min by (instance) ({__name__=~'shoal_.*_certificate_expires_timestamp_seconds'}) - time()) / 86400"
    )
    assert expires.keys() == targets
    assert all(360 < days < 366 for days in expires.values())


def test_a_caller_without_the_token_of_its_role_is_refused(cluster: Cluster) -> None:
    for token, says in (
        ("", "set security.ca and security.token"),
        ("/etc/shoal/actor.token", "refuses: a token of actor"),
    ):
        options = f"--security.ca /etc/shoal/ca.pem --security.token '{token}'"
        assert says in cluster["actor1"].run(f"shoal replay items replay:7401 {options} 2>&1", check=False)
    script = (
        "import ssl, urllib.request; context = ssl.create_default_context(cafile='/etc/shoal/ca.pem'); "
        "urllib.request.urlopen('https://replay:9401/metrics', context=context)"
    )
    assert "401" in cluster["actor1"].run(f'/opt/shoal/bin/python -c "{script}" 2>&1', check=False)
    said = cluster["actor1"].run("shoal health replay:7401 2>&1", check=False)  # in the clear
    assert "does not answer" in said


@pytest.mark.parametrize(
    ("machine", "unit"), [("replay", "shoal-replay@0"), ("learner", "shoal-learner"), ("actor1", "shoal-actor@0")]
)
def test_the_sandbox_is_in_force(cluster: Cluster, machine: str, unit: str) -> None:
    box, probe = cluster[machine], unit.replace("@0", "@probe")
    was_running = probe == unit
    box.write("/opt/shoal/probe.py", (HERE / "probe.py").read_text())
    outside = [
        "/",
        "/etc/shoal",
        "/opt/shoal",
        "/usr",
        "/home",
        "/root",
        "/var/log",
        "/sys",
        "/proc/sys/kernel",
        "/dev",
    ]
    run = f"/opt/shoal/bin/python /opt/shoal/probe.py /var/lib/shoal {' '.join(outside)}"
    _drop_in(box, probe, f"[Service]\nType=oneshot\nWatchdogSec=0\nRestart=no\nExecStart=\nExecStart={run}")
    box.run(f"systemctl stop {probe}; systemctl start {probe}")
    found = json.loads((box.root / "var" / "lib" / "shoal" / "probe.json").read_text())
    _undo_drop_in(box, probe)
    if was_running:
        box.run(f"systemctl start {probe}")
    assert found["writes to /var/lib/shoal"] == "yes"
    assert [path for path in outside if found[f"writes to {path}"] == "yes"] == []
    assert found["user"] == box.run("id -u shoal").strip()
    assert found["groups"] == f"[{box.run('id -g shoal').strip()}]"
    for act in ("mounts", "unshares", "traces", "opens a raw socket", "lists /root"):
        assert found[act] != "yes", act
    assert found["sees process 1"] == "False"
    assert not {"kmsg", "mem", "vda", "sda"} & set(found["devices"].split())
    assert found["becomes root"] == ""
    assert (found["maps memory to write and execute"] == "yes") == (machine != "replay")  # torch and its like need it


def test_certificates_and_tokens_are_changed_while_training_goes_on(cluster: Cluster) -> None:
    pids = {service: cluster.pid(*service) for service in SERVICES}
    box = cluster["replay"]
    old = box.run("cat pki/actor.token").strip()
    box.run(
        "for machine in replay learner actor1 actor2; do shoal certs issue pki $machine $machine --days 20;"
        " scp -q pki/$machine.pem root@$machine:/etc/shoal/machine.pem;"
        " scp -q pki/$machine-key.pem root@$machine:/etc/shoal/machine-key.pem; done;"
        # First a further token, which services know before anybody has it; then the old one is withdrawn.
        " shoal certs token pki actor; for machine in replay learner actor1 actor2; do"
        " scp -q pki/tokens.toml root@$machine:/etc/shoal/; done;"
        " for machine in actor1 actor2; do scp -q pki/actor.token root@$machine:/etc/shoal/; done; sleep 2;"
        f" sed -i /$(printf %s '{old}' | sha256sum | cut -c -64)/d pki/tokens.toml;"
        " for machine in replay learner actor1 actor2; do"
        " scp -q pki/tokens.toml root@$machine:/etc/shoal/; done; sleep 2"
    )
    box.run(f"umask 077; echo {old} > /root/old.token")
    refused = box.run(
        "shoal replay items replay:7401 --security.ca pki/ca.pem --security.token /root/old.token 2>&1", check=False
    )
    assert "does not know the caller's token" in refused
    before = {machine: cluster.acknowledged(machine) for machine in ("actor1", "actor2")}
    cluster.until(lambda: all(cluster.acknowledged(m) > n for m, n in before.items()), "actors act on", 60)
    cluster.trains_on()
    days = "(min by (instance) ({__name__=~'shoal_.*_certificate_expires_timestamp_seconds'}) - time()) / 86400"
    cluster.until(
        lambda: [d < 21 for d in cluster.query(days).values()] == [True] * 5, "Prometheus sees the new ends", 60
    )
    assert {service: cluster.pid(*service) for service in SERVICES} == pids  # nothing was restarted


@pytest.mark.parametrize(("machine", "unit"), SERVICES)
def test_a_killed_service_is_restarted_and_training_goes_on(cluster: Cluster, machine: str, unit: str) -> None:
    before = cluster.pid(machine, unit)
    cluster[machine].run(f"kill -9 {before}")
    cluster.until(
        lambda: cluster.pid(machine, unit) not in {"0", before} and cluster.is_up(machine, unit), "it is back"
    )
    cluster.trains_on()


@pytest.mark.parametrize("machine", UNITS)
def test_a_machine_that_loses_its_power_comes_back_by_itself(cluster: Cluster, machine: str) -> None:
    cluster[machine].power_off()
    cluster[machine].boot()
    cluster.all_up()
    cluster.trains_on()


def test_a_partition_heals(cluster: Cluster) -> None:
    pid = cluster.pid("actor1", "shoal-actor@0")
    with cluster["actor1"].unplugged():
        time.sleep(8)
        cluster.until(
            lambda: "waiting for the" in cluster.show("actor1", "shoal-actor@0", "StatusText"), "it waits", 30
        )
        cluster.trains_on()  # on the other's steps
    cluster.until(lambda: cluster.acknowledged("actor1") > 0, "the actor is heard again", 60)
    before = cluster.acknowledged("actor1")
    cluster.until(lambda: cluster.acknowledged("actor1") > before, "the actor acts on", 60)
    assert cluster.pid("actor1", "shoal-actor@0") == pid


def test_a_service_that_makes_no_progress_is_restarted_and_one_that_waits_is_not(cluster: Cluster) -> None:
    for machine, unit in (("replay", "shoal-replay@0"), ("actor1", "shoal-actor@0")):
        _drop_in(cluster[machine], unit, "[Service]\nWatchdogSec=10\nTimeoutAbortSec=2")
        cluster[machine].run(f"systemctl restart {unit}")
    pids = {name: cluster.pid(name, UNITS[name][0]) for name in ("replay", "actor1")}
    cluster["learner"].run("systemctl stop shoal-learner")  # the others wait now, and can say for what
    time.sleep(22)
    assert {name: cluster.pid(name, UNITS[name][0]) for name in pids} == pids
    cluster["learner"].run("systemctl start shoal-learner")
    for machine, pid in pids.items():
        cluster[machine].run(f"kill -STOP {pid}")
    for machine, pid in pids.items():
        unit = UNITS[machine][0]
        cluster.until(lambda m=machine, u=unit, p=pid: cluster.pid(m, u) not in {p, "0"}, f"{unit} is restarted", 30)
        assert "watchdog" in cluster[machine].run(f"journalctl -u {unit} --no-pager -n 30").lower()
        _undo_drop_in(cluster[machine], unit)
        cluster[machine].run(f"systemctl restart {unit}")
    cluster.trains_on()


def test_two_installations_on_one_machine_do_not_meet(cluster: Cluster, tmp_path: Path) -> None:
    box, network = cluster["actor2"], cluster.network
    (step,) = [step for step in cluster.steps if step.heading == "Two runs on one machine"]
    pid = cluster.pid("actor2", "shoal-actor@0")
    # The wheels come over the network this time, from an index as pip expects one.
    for wheel in cluster.wheels.glob("*.whl"):
        project = tmp_path / "simple" / wheel.name.split("-")[0].lower().replace("_", "-").replace(".", "-")
        project.mkdir(parents=True, exist_ok=True)
        (project / wheel.name).symlink_to(wheel)
    command = network.command("python3", "-m", "http.server", "8000", "--directory", str(tmp_path))
    index = f"index-url = http://{network.address}:8000/simple/\ntrusted-host = {network.address}\n"
    box.write("/etc/pip.conf", f"[global]\n{index}disable-pip-version-check = true\n")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            cluster.follow([step])
        finally:
            server.terminate()
            box.write("/etc/pip.conf", PIP_FROM_FOLDER)
    assert "127.0.0.1:7501 is healthy" in cluster.said["Two runs on one machine actor2"]
    assert cluster.show("actor2", "shoal-lab-replay@0", "ActiveState") == "active"
    assert "/etc/shoal-lab/" in box.run("systemctl cat shoal-lab-replay@0")
    said = box.run("bash systemd/install.sh --uninstall --name lab --purge")
    assert "shoal-lab is removed, with its data" in said
    assert (
        box.run("ls -d /opt/*lab* /etc/*lab* /var/lib/*lab* /etc/systemd/system/*lab* 2>/dev/null", check=False) == ""
    )
    assert cluster.pid("actor2", "shoal-actor@0") == pid  # the first one did not notice


def test_installing_again_changes_no_settings_and_names_what_to_restart(cluster: Cluster) -> None:
    box = cluster["actor2"]
    settings = "cd /etc/shoal; sha256sum *; stat -c '%n %U %G %a' *"
    before = box.run(settings)
    said = box.run("bash systemd/install.sh --wheel shoal-*.whl --extras sim", timeout_s=300)
    assert "Next: systemctl restart shoal-actor@0.service" in said
    assert box.run(settings) == before
    assert "root shoal 640" in before


def test_a_stop_is_graceful_and_within_ten_seconds(cluster: Cluster) -> None:
    for machine, unit in SERVICES:
        began = time.monotonic()
        cluster[machine].run(f"systemctl stop {unit}")
        took = time.monotonic() - began
        result = cluster.show(machine, unit, "Result")
        assert (result, took < STOP_S) == ("success", True), f"{unit}: {result}, {took:.1f} s\n{cluster.why_not()}"


def test_uninstalling_leaves_data_and_purging_nothing(cluster: Cluster) -> None:
    box = cluster["learner"]
    assert "/etc/shoal and /var/lib/shoal are left" in box.run("bash systemd/install.sh --uninstall")
    assert box.run("ls -d /opt/shoal /usr/local/bin/shoal /etc/systemd/system/*shoal* 2>/dev/null", check=False) == ""
    assert "shoal.toml" in box.run("ls /etc/shoal")
    assert "checkpoints" in box.run(f"ls {RUN}")
    box.run("bash systemd/install.sh --uninstall --purge")
    assert box.run("ls -d /etc/shoal /var/lib/shoal 2>/dev/null", check=False) == ""
