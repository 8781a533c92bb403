"""The compiled engine: the steps of :mod:`capplan.replica.continuous`, many at a time.

The reference engine is the specification: what each decision is and why is written there, and every
decision is repeated here on arrays. Jobs are rows (*slots*), queues are heaps of rows of integers.
What is new is the *plan*: a step with prefills, followed by steps in which no job joins, leaves or
is preempted, whose ends are therefore known ahead. The caller asks again at the end of the plan,
or earlier if :func:`~capplan.replica.compiled.steps.join` or
:func:`~capplan.replica.compiled.steps.withdraw` cut it short.

step_laws   how long a step takes: plain functions that the reference engine calls too
laws        those functions compiled, and a step time as numbers
arrays      the state of one replica: one array, and the views into it
queue       heaps: the waiting line, the ends of sequences
blocks      KV blocks: a count, or a prefix cache of runs
forming     the jobs of the next step
steps       beginning and ending steps, the plan, coming and going
engine      what the simulation drives
views       the engine's queue and prefix cache as others see them
jit         compiling, and the cache of machine code
"""
