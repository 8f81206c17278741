"""The real DAG, run small once (`tests/micro.yaml`), and what a user may do to it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pilot_rows
import pytest
from forked_python import interpreter
from micro_study import copy_project, snakemake
from safetensors.torch import load_file

from agentrl.evaluation.agent import measures
from agentrl.evidence.files import write_json
from agentrl.evidence.hashing import hash_files
from agentrl.judgement import comparison
from agentrl.rollout.trajectory import append, read
from agentrl.statistics.paired import paired
from agentrl.verify.breaks import Findings
from agentrl.verify.chain import check_configs

ROOT = Path(__file__).resolve().parents[2]
STUDY = "results/micro"
ARMS = ("pilot", "placebo")


@pytest.fixture
def own(micro: Path, tmp_path: Path) -> Path:
    """A private copy of the finished study, Snakemake's metadata included."""
    return Path(shutil.copytree(micro, tmp_path / "own", symlinks=True))


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_second_run_does_nothing(micro: Path) -> None:
    assert "Nothing to be done" in snakemake(micro).stdout


def test_the_summary_tells_the_counts_of_the_evidence(micro: Path) -> None:
    summary = load(micro / STUDY / "summary/summary.json")
    for policy, found in summary["policies"].items():
        for split in ("dev", "test"):
            episodes = list(
                read(micro / STUDY / "policies" / policy / f"agent-{split}" / "episodes.jsonl")
            )
            assert found[f"agent-{split}"] == measures(episodes, len(episodes))
    text = (micro / STUDY / "summary/summary.md").read_text(encoding="utf-8")
    assert all(sentence in text for sentence in [*summary["findings"], *summary["limits"]])


def test_the_summary_and_its_runs_have_the_pilot_s_rows(micro: Path) -> None:
    pages = {"summary.md": pilot_rows.SUMMARY, "runs.md": pilot_rows.RUNS}
    for page, expected in pages.items():
        text = (micro / STUDY / "summary" / page).read_text(encoding="utf-8")
        assert {title: pilot_rows.names(text, title) for title in expected} == expected


def test_the_summary_tells_what_was_replayed_and_what_may_be_released(micro: Path) -> None:
    summary = load(micro / STUDY / "summary/summary.json")
    assert summary["checked"] == load(micro / STUDY / "verify/verify.json")["stages"]
    for arm in ARMS:
        told = summary["training"][f"{arm}/seed-3"]
        steps = [
            json.loads(line)
            for line in (micro / STUDY / f"arms/{arm}/seed-3/train/steps.jsonl")
            .read_text()
            .splitlines()
        ]
        assert told["steps_with_gradient"] == sum(step["grad_norm"] != 0 for step in steps) == 3
        assert told["adapter_tensors"] == told["adapter_tensors_changed"] == 28
        assert told["infrastructure_errors"] == 0
    assert summary["release"]["pilot/seed-3"]["eligible"] == (
        summary["comparisons"]["pilot/seed-3"]["retention"]["losses"]
        <= summary["comparisons"]["pilot/seed-3"]["retention"]["wins"]
    )
    assert summary["release"]["placebo/seed-3"]["blocked_by"][0] == "control: its reward is random"


def test_the_change_consists_of_the_episodes_workflows_and_answers(micro: Path) -> None:
    for arm in ARMS:
        for split in ("dev", "test"):
            before, after = (
                {
                    e.key.task: e.outcome
                    for e in read(micro / STUDY / f"policies/{policy}/agent-{split}/episodes.jsonl")
                }
                for policy in ("baseline", f"{arm}/seed-3")
            )
            found = load(micro / STUDY / "statistics/comparison.json")[arm][f"{arm}/seed-3"][
                f"agent-{split}"
            ]
            gained = [task for task in before if after[task].strict and not before[task].strict]
            assert sum(found["composition"]["gained"].values()) == len(gained) == found["wins"]
            assert found["composition"]["gained"]["workflow"] == sum(
                before[task].answer_correct for task in gained
            )
            assert found["composition"]["gained"]["answer"] == sum(
                before[task].workflow for task in gained
            )
            assert sum(found["composition"]["lost"].values()) == found["losses"]


def test_where_it_ran_is_no_part_of_the_manifest_and_is_shown(micro: Path) -> None:
    outputs = load(micro / STUDY / "summary/manifest.json")["outputs"]
    assert set(outputs) == {"summary.json", "summary.md"}
    command = [sys.executable, "scripts/show_study.py", "--study", STUDY]
    shown = subprocess.run(command, cwd=micro, text=True, capture_output=True, check=True).stdout
    assert (micro / STUDY / "summary/runs.md").read_text(encoding="utf-8") in shown
    assert "ran from no checkout: no commit says which code they ran." in shown
    assert "`runs.md` beside this file" in shown


def test_the_summary_holds_no_raw_task(micro: Path) -> None:
    text = "".join(
        (micro / STUDY / "summary" / name).read_text(encoding="utf-8")
        for name in ("summary.md", "summary.json")
    )
    tasks = [
        json.loads(line)
        for path in micro.glob(f"{STUDY}/tasks/*/tasks.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(tasks) == 30
    assert not [
        task["id"] for task in tasks if task["record_id"] in text or task["question"] in text
    ]


def test_every_episode_is_there_exactly_once(micro: Path) -> None:
    for policy in ("baseline", *(f"{arm}/seed-3" for arm in ARMS)):
        keys = [
            (e.key.policy, e.key.step, e.key.task, e.key.trial)
            for e in read(micro / STUDY / "policies" / policy / "agent-test/episodes.jsonl")
        ]
        assert len(keys) == len(set(keys)) == 8
        assert {key[:2] for key in keys} == {(policy, 0 if policy == "baseline" else 3)}


def test_training_recorded_every_group(micro: Path) -> None:
    for arm in ARMS:
        folder = micro / STUDY / "arms" / arm / "seed-3" / "train"
        manifest, episodes = load(folder / "manifest.json"), list(read(folder / "episodes.jsonl"))
        assert len(episodes) == manifest["episodes"] == 24
        assert manifest["unique_tasks"] == 6
        assert manifest["strict_success"] == sum(e.outcome.strict for e in episodes)
        assert manifest["mean_reward"] == pytest.approx(
            sum(e.reward or 0 for e in episodes) / 24, abs=1e-6
        )
        assert [e.key.trial for e in episodes] == [0, 1, 2, 3] * 6
        assert {e.key.step for e in episodes} == {0, 1, 2}


def test_the_policy_of_the_micro_study_can_call_its_tools(micro: Path) -> None:
    """Guards the other tests here: with a policy that never calls, most of them would pass on nothing."""
    episodes = [
        e
        for split in ("dev", "test")
        for e in read(micro / STUDY / f"policies/baseline/agent-{split}/episodes.jsonl")
    ]
    assert sum(e.outcome.lookup for e in episodes) >= 4


def test_both_arms_differ_only_in_their_reward(micro: Path) -> None:
    pilot, placebo = (
        load(micro / STUDY / f"arms/{arm}/seed-3/train/manifest.json") for arm in ARMS
    )
    assert {key for key in pilot["config"] if pilot["config"][key] != placebo["config"][key]} == {
        "arm"
    }
    assert {
        role for role in pilot["inputs"] if pilot["inputs"][role] != placebo["inputs"][role]
    } == {"arm"}
    first = [
        next(iter(read(micro / STUDY / f"arms/{arm}/seed-3/train/episodes.jsonl"))) for arm in ARMS
    ]
    assert first[0].completion_ids == first[1].completion_ids, (
        "the first step samples from the same policy with the same keys"
    )


def test_merge_changed_every_target_and_nothing_else(micro: Path) -> None:
    for arm in ARMS:
        audit = load(micro / STUDY / f"arms/{arm}/seed-3/merged/merge.json")
        assert (audit["changed"], audit["targets"], audit["tied_head"]) == (14, 14, True)
        start = load_file(micro / STUDY / "start/model/model.safetensors")
        assert audit["tensors"] == len(start) == audit["changed"] + audit["identical"]


def test_baseline_and_candidates_are_compared_under_one_freeze(micro: Path) -> None:
    manifests = [load(path) for path in micro.glob(f"{STUDY}/policies/**/agent-test/manifest.json")]
    assert len(manifests) == 3
    assert (
        len(
            {
                json.dumps([m["config"], m["inputs"]["freeze"], m["inputs"]["tasks"], m["engine"]])
                for m in manifests
            }
        )
        == 1
    )
    assert len({m["inputs"]["policy"] for m in manifests}) == 3


def test_statistics_follow_from_the_episodes(micro: Path) -> None:
    found = load(micro / STUDY / "statistics/comparison.json")["pilot"]["pilot/seed-3"][
        "agent-test"
    ]
    baseline, candidate = (
        comparison.load(micro / STUDY / "policies" / name / "agent-test")
        for name in ("baseline", "pilot/seed-3")
    )
    pair = paired(baseline.scores, candidate.scores)
    assert (found["wins"], found["losses"], found["difference"]) == (
        pair.wins,
        pair.losses,
        pair.difference,
    )


def test_the_verdict_of_one_seed_names_what_is_missing(micro: Path) -> None:
    found = load(micro / STUDY / "statistics/verdict.json")
    assert found["placebos"] == {"placebo": "agent-test"}
    assert found["rule"]["pilot"]["missing"][0] == "insufficient seeds: 1 of 5"
    text = (micro / STUDY / "summary/summary.md").read_text(encoding="utf-8")
    assert "improved by the rule" not in text
    assert all(
        sentence in text for sentence in load(micro / STUDY / "plan/power.json")["sentences"]
    )


def test_the_plan_was_made_before_training_and_says_no_hours_without_a_record(micro: Path) -> None:
    log = (micro / STUDY / "plan/log.txt").read_text(encoding="utf-8")
    assert (
        "GPU hours: no record yet." in log
        or ", train" in log.split("by the mean of recorded stages")[1].split("not counted")[0]
    )
    assert (micro / STUDY / "plan/power.png").stat().st_size > 1000
    started = [
        load(micro / STUDY / f"arms/{arm}/seed-3/train/status.json")["started"] for arm in ARMS
    ]
    assert load(micro / STUDY / "plan/status.json")["started"] <= min(started)


def planned(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Rule -> jobs of a dry run."""
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def test_another_seed_runs_only_its_own_jobs(micro: Path) -> None:
    found = planned(
        snakemake(micro, "-n", "--quiet", "rules", "--config", "training={seeds: [3, 4]}")
    )
    assert (found["train"], found["plan"], found["evaluate_agent"]) == (2, 1, 4)


def test_a_changed_wish_replans_and_retrains_nothing(micro: Path) -> None:
    found = planned(
        snakemake(micro, "-n", "--quiet", "rules", "--config", "plan={wanted_difference: 0.2}")
    )
    assert found["plan"] == 1
    assert "train" not in found


def test_a_design_too_weak_is_refused_before_training(micro: Path, tmp_path: Path) -> None:
    folder = copy_project(tmp_path / "weak")
    target = f"{STUDY}/arms/pilot/seed-3/train/manifest.json"
    done = snakemake(folder, "--config", "plan={refuse_weak: true}", "--", target)
    assert done.returncode == 1
    assert "error: the design is too weak to train: power " in done.stdout
    assert "set plan.refuse_weak to false" in done.stdout
    assert not (folder / STUDY / "arms").exists()


def train_command(folder: Path) -> list[str]:
    base = folder / STUDY
    arguments = {
        "arm": "pilot", "seed": "3", "arm-section": f"{base}/config/arm-pilot.json", "start": f"{base}/start/manifest.json",
        "tasks": f"{base}/tasks/train/tasks.jsonl", "freeze": f"{base}/freeze/train.json", "work": f"{base}/arms/pilot/seed-3/work",
        "out": f"{base}/arms/pilot/seed-3/train",
    }  # fmt: skip
    return [
        sys.executable,
        "scripts/train.py",
        *(part for name, value in arguments.items() for part in (f"--{name}", value)),
    ]


def test_training_killed_in_the_middle_resumes_to_the_same_bytes(own: Path) -> None:
    out, work = own / STUDY / "arms/pilot/seed-3/train", own / STUDY / "arms/pilot/seed-3/work"
    expected = load(out / "manifest.json")
    shutil.rmtree(out)
    running = subprocess.Popen(
        train_command(own),
        cwd=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not list(work.glob("*/checkpoint-1/complete.json")):
        assert running.poll() is None, running.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    subprocess.run(train_command(own), cwd=own, check=True, capture_output=True)
    assert load(out / "manifest.json") == expected
    assert load(out / "provenance.json")["resumed_from_step"] >= 1
    assert not list(work.glob("*/checkpoint-*")), "a finished run leaves no work folder"


def run_evaluation(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    base = folder / STUDY
    arguments = {
        "name": "baseline", "policy": f"{base}/start/manifest.json", "tasks": f"{base}/tasks/test/tasks.jsonl",
        "freeze": f"{base}/freeze/agent-test.json", "out": f"{folder}/evaluation", **changes,
    }  # fmt: skip
    command = [
        interpreter(),
        "scripts/evaluate_agent.py",
        *(part for name, value in arguments.items() for part in (f"--{name}", value)),
    ]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One clear line on stderr, no traceback, exit code 1."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    error = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert all(word in error[0] for word in words), error[0]


def test_an_evaluation_repeated_gives_the_same_manifest(own: Path) -> None:
    assert run_evaluation(own).returncode == 0
    again, first = (
        own / "evaluation/manifest.json",
        own / STUDY / "policies/baseline/agent-test/manifest.json",
    )
    assert again.read_bytes() == first.read_bytes()


def test_a_task_file_changed_after_its_freeze_is_refused(own: Path) -> None:
    tasks = own / STUDY / "tasks/test/tasks.jsonl"
    tasks.write_text(
        tasks.read_text(encoding="utf-8").replace('"question": "', '"question": "Hallo! ', 1),
        encoding="utf-8",
    )
    refused(run_evaluation(own), "tasks.jsonl", "agent-test.json", "expected sha256")
    assert load(own / "evaluation/status.json")["state"] == "failed"


def test_a_half_written_checkpoint_is_refused(own: Path) -> None:
    weights = own / "tests/data/start/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(run_evaluation(own), "model.safetensors", "expected sha256")


def test_a_missing_checkpoint_is_refused(own: Path) -> None:
    shutil.rmtree(own / "tests/data/start")
    refused(run_evaluation(own), "missing")


def test_cuda_on_a_cpu_worker_is_refused(own: Path) -> None:
    freeze = own / STUDY / "freeze/agent-test.json"
    content = load(freeze)
    content["config"]["model"]["device"] = "cuda"
    freeze.write_text(json.dumps(content), encoding="utf-8")
    refused(run_evaluation(own), "model.device", "cuda", "no GPU")


def test_a_work_folder_of_another_freeze_is_refused(own: Path) -> None:
    running = subprocess.Popen(
        train_command(own),
        cwd=own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    work = own / STUDY / "arms/pilot/seed-3/work"
    while not list(work.glob("*/key.json")):
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    (key,) = work.glob("*/key.json")
    key.write_text(json.dumps({**load(key), "train.json": "0" * 64}), encoding="utf-8")
    done = subprocess.run(train_command(own), cwd=own, text=True, capture_output=True, check=False)
    refused(done, "work folder of another freeze", "train.json", "0" * 64)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainig={steps: 2}", ("trainig", "unknown key")),
        ("training={group_size: 3}", ("training", "group_size 3 does not divide batch_size 8")),
        ("protocol={budget: many}", ("protocol.budget", '"many"')),
        ("tasks={family: nonsense}", ("tasks", "nonsense")),
    ],
)
def test_a_config_mistake_is_a_message_before_any_job(
    micro: Path, override: str, words: tuple[str, ...]
) -> None:
    done = snakemake(micro, "-n", "--config", override)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    assert all(word in done.stdout for word in words), done.stdout


def test_an_unconfigured_seed_is_refused_not_planned(micro: Path) -> None:
    done = snakemake(micro, "-n", f"{STUDY}/arms/pilot/seed-99/train/manifest.json")
    assert done.returncode == 1
    assert "seed-99" in done.stdout


def test_another_arm_plans_only_its_own_jobs(micro: Path) -> None:
    found = planned(
        snakemake(
            micro,
            "-n",
            "--quiet",
            "rules",
            "--config",
            "arms={short: {reward: binary, training: {steps: 1}}}",
        )
    )
    assert {rule: found.get(rule, 0) for rule in ("admit", "train", "merge", "evaluate_agent", "evaluate_retention")} == {
        "admit": 1, "train": 1, "merge": 1, "evaluate_agent": 2, "evaluate_retention": 1,
    }  # fmt: skip
    assert not {"preflight", "freeze", "tasks", "start"} & set(found)


def test_another_preflight_retrains_nothing(micro: Path) -> None:
    found = planned(snakemake(micro, "-n", "--quiet", "rules", "--config", "preflight={groups: 3}"))
    assert (found["preflight"], found["admit"]) == (1, 2)
    assert not {"train", "merge", "evaluate_agent"} & set(found)


def test_an_arm_trains_with_its_own_settings(own: Path) -> None:
    """Two steps instead of three, binary reward: the manifest says so, and verification compares it with the sections."""
    write_json(
        own / STUDY / "config/arm-pilot.json",
        {"reward": "binary", "training": {"steps": 2, "lora": {"r": 4}}, "warmup": None},
    )
    subprocess.run(train_command(own), cwd=own, check=True, capture_output=True)
    run = own / STUDY / "arms/pilot/seed-3/train"
    manifest, base = load(run / "manifest.json"), load(own / STUDY / "config/training.json")
    assert manifest["config"]["training"] == {**base, "steps": 2, "lora": {**base["lora"], "r": 4}}
    assert (manifest["steps"], manifest["episodes"]) == (2, 16)
    assert load(run / "adapter/adapter_config.json")["r"] == 4
    assert [e.reward for e in read(run / "episodes.jsonl")] == [
        float(e.outcome.strict) for e in read(run / "episodes.jsonl")
    ]
    findings = Findings(own / STUDY)
    check_configs(own / STUDY, [run], findings)
    assert findings.passed, findings.first
    write_json(
        own / STUDY / "config/arm-pilot.json",
        {"reward": "binary", "training": {"steps": 2}, "warmup": None},
    )
    check_configs(own / STUDY, [run], findings)
    assert "config" in findings.first


def test_an_arm_that_could_not_learn_is_refused_by_name(own: Path) -> None:
    """The preflight's strict successes taken back: the shaped arm still has its milestones, a binary arm has nothing."""
    folder = own / STUDY / "preflight"
    episodes = [
        replace(e, outcome=replace(e.outcome, strict=False))
        for e in read(folder / "episodes.jsonl")
    ]
    with open(folder / "episodes.jsonl", "w", encoding="utf-8") as stream:
        append(stream, episodes)
    manifest = load(folder / "manifest.json")
    write_json(
        folder / "manifest.json", {**manifest, "outputs": hash_files(folder, ["episodes.jsonl"])}
    )
    for arm, reward in (("pilot", "shaped"), ("hopeless", "binary"), ("placebo", "random")):
        section, out = own / STUDY / f"config/arm-{arm}.json", own / f"{arm}.json"
        write_json(section, {"reward": reward, "training": {}, "warmup": None})
        arguments = [
            "--arm",
            arm,
            "--arm-section",
            str(section),
            "--preflight",
            str(folder / "manifest.json"),
            "--out",
            str(out),
        ]
        done = subprocess.run(
            [interpreter(), "scripts/admit_arm.py", *arguments],
            cwd=own,
            text=True,
            capture_output=True,
            check=False,
        )
        assert out.exists() == (done.returncode == 0) == (arm != "hopeless"), done.stderr
        if arm == "hopeless":
            refused(
                done,
                "arm 'hopeless' could not learn",
                "none of 2 groups of 4",
                "binary reward",
                "arms.hopeless",
            )


def test_preflight_touches_training_tasks_only(micro: Path) -> None:
    keys = [e.key for e in read(micro / STUDY / "preflight/episodes.jsonl")]
    assert {(key.policy, key.step, key.split) for key in keys} == {("baseline", 0, "train")}
    assert [key.trial for key in keys] == [0, 1, 2, 3] * 2
    assert set(load(micro / STUDY / "preflight/manifest.json")["inputs"]) == {
        "section",
        "start",
        "tasks",
        "freeze",
    }


def test_an_edited_reward_retrains_but_leaves_the_baseline(micro: Path) -> None:
    done = snakemake(micro, "-n", "--quiet", "rules", "--config", "reward={lookup: 0.2}")
    found = planned(done)
    assert found["train"] == 2
    assert found["evaluate_agent"] == 4, "two candidates on two splits; the baseline stays"
    assert "demo_base" not in found
