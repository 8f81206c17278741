"""Provenance: what is known is said, what is not is called unknown, and no container is called none."""

from pathlib import Path

import pytest

from agentrl.evidence.provenance import DIGEST_VARIABLE, container, environment

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture(autouse=True)
def _no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (DIGEST_VARIABLE, "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_no_sign_of_a_container_is_none(tmp_path: Path) -> None:
    write(tmp_path / "proc/1/cgroup", "0::/init.scope\n")
    assert container(tmp_path)["digest"] == "none"


def test_a_profile_declares_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIGEST_VARIABLE, DIGEST)
    assert container(tmp_path) == {"digest": DIGEST, "source": DIGEST_VARIABLE}


def test_a_tag_is_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIGEST_VARIABLE, "study:latest")
    write(tmp_path / ".dockerenv", "")
    assert container(tmp_path)["digest"] == "unknown"


def test_an_apptainer_image_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "image.sif", "abc")
    monkeypatch.setenv("APPTAINER_CONTAINER", str(tmp_path / "image.sif"))
    assert (
        container(tmp_path)["digest"]
        == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    monkeypatch.setenv("APPTAINER_CONTAINER", str(tmp_path / "elsewhere.sif"))
    assert container(tmp_path)["digest"] == "unknown"


def test_podman_tells_its_image(tmp_path: Path) -> None:
    write(
        tmp_path / "run/.containerenv",
        f'engine="podman"\nimageid="{DIGEST.removeprefix("sha256:")}"\n',
    )
    assert container(tmp_path)["digest"] == DIGEST


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".dockerenv", ""),
        ("run/.containerenv", ""),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n"),
    ],
)
def test_an_evident_container_without_an_image_is_unknown(
    tmp_path: Path, file: str, text: str
) -> None:
    write(tmp_path / file, text)
    assert container(tmp_path)["digest"] == "unknown"


def test_the_environment_names_machine_class_and_packages_but_no_host() -> None:
    found = environment()
    assert {"commit", "dirty", "python", "packages", "host", "container", "gpu"} <= set(found)
    assert found["packages"]["pandas"]
    assert set(found["host"]) == {"platform", "processor", "cpus", "memory_gib"}
