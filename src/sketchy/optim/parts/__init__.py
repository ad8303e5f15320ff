"""The parts of a step. Each owns its slots of the state; an optimizer is a choice of parts.

| part           | what it does with a gradient             | classes                                        |
| -------------- | ---------------------------------------- | ---------------------------------------------- |
| statistics     | folds it into a covariance for each axis | `Sketches`                                     |
| preconditioner | learns from it; preconditions momentum   | `InverseRoots`, `BasisMoments`, `EntryMoments` |
| graft          | learns the length of a step              | one class a rule, in `grafts`                  |
| momentum       | averages it                              | `Momentum`                                     |

A part is made once for all weights of one shape and set of options (`of`), and holds no tensors. The values
are the stack's: a part reads and writes its slots there.
"""
