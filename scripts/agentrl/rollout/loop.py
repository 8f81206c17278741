"""Multi-turn episodes over an engine: the same loop for training and for evaluation.

A turn that ended itself and calls tools is answered by the environment and continues, anything else ends the episode. Whether unfinished
episodes wait for each other's turns is the engine's business (`engine.base.serve`). The stream budget counts every token behind the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentrl.rollout.chat import ChatProtocol, parse_turn
from agentrl.rollout.sampler import Engine, EngineError, Request, Sample, serve
from agentrl.rollout.settings import Protocol
from agentrl.rollout.trajectory import Key, Segment, Trajectory
from agentrl.tasks.environment import Call, EndKind, Environment, judge, run_call
from agentrl.tasks.families import Task


@dataclass
class Episode:
    """One running episode."""

    task: Task
    key: Key
    segments: list[Segment]
    environment: Environment
    calls: list[Call] = field(default_factory=list)
    turns: int = 0
    invented: bool = False
    answer: int | None = None
    end: EndKind | None = None

    @property
    def context(self) -> list[int]:
        """Everything the policy sees next."""
        return [token for segment in self.segments for token in segment.ids]

    @property
    def used(self) -> int:
        """Tokens of the stream budget spent so far."""
        return sum(len(segment.ids) for segment in self.segments[1:])


class Rollout:
    """Plays episodes of one protocol over one engine.

    Args:
        engine: samples turns.
        chat: the tool protocol of the policy's tokenizer.
        protocol: budget and turn limits.
    """

    def __init__(self, engine: Engine, chat: ChatProtocol, protocol: Protocol) -> None:
        self.engine, self.chat, self.protocol = engine, chat, protocol

    def play(self, tasks: Sequence[Task], keys: Sequence[Key]) -> list[Trajectory]:
        """Play one batch of episodes to their ends; results in order. Raises `EngineError` if the engine fails."""
        episodes = [self._start(task, key) for task, key in zip(tasks, keys, strict=True)]

        def answer(row: int, sample: Sample) -> Request | None:
            self._advance(episodes[row], sample)
            return self._request(episodes[row]) if episodes[row].end is None else None

        serve(self.engine, [self._request(episode) for episode in episodes], answer)
        return [self._finish(episode) for episode in episodes]

    def _start(self, task: Task, key: Key) -> Episode:
        environment = Environment()
        environment.reset(record_id=task.record_id, facts=task.facts)
        return Episode(
            task, key, [Segment("prompt", self.chat.prompt(task.messages()))], environment
        )

    def _request(self, episode: Episode) -> Request:
        return Request(
            episode.context, self.protocol.budget - episode.used, episode.key.stream(episode.turns)
        )

    def _advance(self, episode: Episode, sample: Sample) -> None:
        """Append one sampled turn and what the environment answers to it."""
        if not 0 < len(sample.ids) <= self.protocol.budget - episode.used:
            raise EngineError(
                f"{self.engine.name} engine returned {len(sample.ids)} ids for {episode.key}, outside its budget"
            )
        episode.segments.append(Segment("sampled", sample.ids, sample.logprobs, sample.finish))
        turn, index = parse_turn(self.chat.decode(sample.ids)), episode.turns
        episode.turns += 1
        episode.invented |= turn.invented
        if sample.finish == "length":
            episode.end = "token_cap"
        elif not turn.calls or sample.ids[-1] != self.chat.end_of_turn:
            episode.answer = None if turn.calls else turn.answer
            episode.end = "malformed" if episode.answer is None else "answer"
        elif index == self.protocol.max_tool_iterations:
            episode.end = "turn_cap"
        else:
            self._answer_calls(
                episode, [run_call(episode.environment, request, index) for request in turn.calls]
            )

    def _answer_calls(self, episode: Episode, calls: list[Call]) -> None:
        """Append the observations if they fit and leave room for one more token, else end the episode without them."""
        pieces = self.chat.suffix([call.observation for call in calls])
        fits = episode.used + sum(len(piece.ids) for piece in pieces) < self.protocol.budget
        episode.calls += calls if fits else [replace(call, retained=False) for call in calls]
        if fits:
            episode.segments += [Segment(piece.kind, list(piece.ids)) for piece in pieces]  # type: ignore[arg-type]
        else:
            episode.end = "observation_cap"

    def _finish(self, episode: Episode) -> Trajectory:
        if episode.end is None:
            raise RuntimeError(f"{episode.key}: asked for the record of a running episode")
        outcome = judge(
            episode.calls,
            episode.task.facts,
            episode.task.answer,
            episode.answer,
            episode.end,
            episode.invented,
            self.protocol.success,
        )
        return Trajectory(episode.key, episode.segments, episode.calls, outcome, self.engine.name)
