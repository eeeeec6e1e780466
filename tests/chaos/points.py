"""The points of each service's code at which a kill hurts most."""

from tests.chaos.strikes import Strike

LEARNER = [
    Strike("services.learner.feed:Feed.issue", "after", 1),  # before its first checkpoint, and so anew
    Strike("services.learner.feed:Feed.take", "after", 2),  # it has read a batch
    Strike("services.learner.ppo:train_minibatch", "after", 3),  # half a step is in the weights
    Strike("services.learner.weight_sync:WeightPublisher.publish", "after", 4),  # the credits are not back
    Strike("shared.stream:Streams.append_prompts", "after", 3),  # the reply never came
    Strike("services.learner.checkpoint:_flush", "before", 5),  # files are there and not durable
    Strike("services.learner.checkpoint:save", "after", 1),  # durable and not acknowledged
    Strike("shared.stream:Streams.release", "after", 2),  # acknowledged without knowing
    Strike("services.learner.dead_groups:DeadGroups.release", "after", 1),
]
ROLLOUT = [
    Strike("shared.reader:Reader.read", "after", 3),
    Strike("tests.chaos.engine:SmallEngine.generate", "after", 6),
    Strike("shared.stream:Streams.forward_all", "after", 4),
    Strike("services.rollout.weight_store:WeightStore.receive", "after", 2),
    Strike("services.rollout.weight_store:WeightStore.commit", "after", 2),
]
REWARD = [
    Strike("services.reward.worker:Worker._process", "after", 6),
    Strike("shared.stream:Streams.forward_all", "after", 3),
    Strike("shared.stream:Streams.forward_all", "before", 3),
]
