"""Why groups die, in the few kinds that metrics tell apart. The cause itself is text, for people."""

from typing import Literal, get_args

CauseKind = Literal["malformed", "refused", "failed", "timeout", "unfinished"]
"""`malformed`: not what its stream carries. `refused`: it cannot be answered or scored as it is. `failed`,
`timeout`: so ended every attempt. `unfinished`: workers took it, and none came to an end with it."""

CAUSE_KINDS: tuple[CauseKind, ...] = get_args(CauseKind)
