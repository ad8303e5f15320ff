"""Sizes tuned to processors: panels, waves, stacks. They change how work is cut, not its results."""

# A panel: three of them fit in a second-level cache of 2 MB. Each panel costs the launch of its operations.
PANEL_BYTES = 1 << 19
MOST_PANELS = 8

# What stacks that step side by side may hold together: a second-level cache, and some of the third.
WAVE_BYTES = 1 << 22

# The same for sharded stacks, of what lies here. All stacks of a wave share their collectives, and these take
# longer to start than the cache saves.
SHARDED_WAVE_BYTES = 1 << 28

# The same on accelerators: launching the operations of a wave takes less time than computing a gigabyte.
WAVE_BYTES_ELSEWHERE = 1 << 30

# The number of entries in a stack. A stack saves kernel launches, but copies its gradients. On the CPU a
# launch is cheap, and large weights step faster alone: by 5 to 10 % for transformers of width 512 or 768, but
# not of width 256.
STACK_ON_CPU, STACK = 1 << 22, 1 << 26

# Columns of a gradient that are held in float64 at a time, where a whole covariance is kept.
COLUMNS_IN_DOUBLE = 512
