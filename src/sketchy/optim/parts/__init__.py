"""The parts of a step. Each part owns some slots of the state. An optimizer is a choice of parts.

| part           | what it does with a gradient           | classes                                        |
| -------------- | -------------------------------------- | ---------------------------------------------- |
| statistics     | adds it to the covariance of each axis | `Sketches`                                     |
| preconditioner | learns from it, preconditions momentum | `InverseRoots`, `BasisMoments`, `EntryMoments` |
| graft          | learns how long a step should be       | one class for each rule, in `grafts`           |
| momentum       | averages it                            | `Momentum`, in few bits with `few_bits`        |
| row norms      | (rows of a direction, if asked for)    | `RowNorms`                                     |

The class method `of` makes a part, once for all weights with the same shape and options. A part holds no
tensors: it reads and writes its slots through the stack.
"""
