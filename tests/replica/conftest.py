"""The scheduler and the memory written out the long way, to check the reference engine alone.

Per-request loops, blocks one by one, an address space token by token. It proves what the equality
of the two engines cannot: that the sums both keep (ticks, phases, the heap of ends, the context of
the batch) are those of the single requests. The compiled engine is compared with the reference.
"""

import math

import pytest

from capplan.replica.compiled.step_laws import LinearStepTime

LAW = LinearStepTime(4e-3, 1.2e-5, 1.3e-5, 3.9e-8)


def width_of(rules, job):
    return 1 if job.greedy else rules.beam_width


class Blocks:
    """Blocks one by one, each with what it holds, who holds it, and since when nobody does."""

    def __init__(self, rules, blocks):
        self.rules, self.size, self.caching = rules, rules.block_size, rules.prefix_caching
        self.blocks = [{"key": None, "held": 0, "since": i - blocks} for i in range(blocks)]
        self.ticket, self.held = 0, {}

    def next_ticket(self):
        self.ticket += 1
        return self.ticket

    def free(self):
        return [b for b in self.blocks if not b["held"]]

    def key(self, job, k):
        covered = len(job.prefix_blocks) * job.prefix_block_tokens
        covered = min(covered, job.prompt_tokens + job.output_tokens)
        tokens = range(k * self.size, (k + 1) * self.size)
        if tokens[-1] < covered:
            return tuple((job.prefix_blocks[t // job.prefix_block_tokens], t) for t in tokens)
        return (id(job), k)

    def find(self, job, known):
        found = []
        for k in range((known - 1) // self.size):
            same = [b for b in self.blocks if b["key"] == self.key(job, k)]
            if not self.caching or not same:
                break
            found.append(min(same, key=lambda b: b["learned"]))
        return found

    def admit(self, job, found, tokens, spare):
        need = math.ceil(tokens / self.size) * width_of(self.rules, job) - len(found)
        evictable = sum(not b["held"] for b in found)
        if need + evictable + spare > len(self.free()):
            return False
        for block in found:
            block["held"] += 1
        self.held[job] = list(found)
        return self.grow(job, tokens)

    def grow(self, job, tokens):
        need = math.ceil(tokens / self.size) * width_of(self.rules, job) - len(self.held[job])
        if need > len(self.free()):
            return False
        for _ in range(need):
            block = min(self.free(), key=lambda b: b["since"])
            block.update(key=None, held=1)
            self.held[job].append(block)
        return True

    def learn(self, job, tokens):
        for k, block in enumerate(self.held[job][: tokens // self.size]):
            if self.caching and block["key"] is None:
                block.update(key=self.key(job, k), learned=self.next_ticket())

    def give_back(self, job, computed):
        self.learn(job, computed)
        held = self.held.pop(job)
        for k, block in enumerate(held):
            if k >= computed // self.size and block["held"] == 1:
                block["key"] = None
        for block in reversed(held):
            block["held"] -= 1
            if not block["held"]:
                block["since"] = self.next_ticket()

    def pause_s(self):
        return 0.0


class Space:
    """An address space token by token."""

    def __init__(self, rules, blocks, copy_s, stored):
        self.rules, self.copy_s, self.stored, self.waited = rules, copy_s, stored, 0.0
        self.owner = [None] * (blocks * rules.block_size)

    def size(self, job):
        each = self.rules.max_model_len
        if self.rules.contiguous.reserve == "oracle":
            each = job.prompt_tokens + job.output_tokens
        elif self.rules.contiguous.reserve == "pow2":
            power = next(2**k for k in range(99) if 2**k >= job.output_tokens)
            each = min(each, job.prompt_tokens + power)
        return each * width_of(self.rules, job)

    def find(self, job, known):
        return []

    def first_fit(self, size):
        for start in range(len(self.owner) - size + 1):
            if all(owner is None for owner in self.owner[start : start + size]):
                return start
        return None

    def admit(self, job, found, tokens, spare):
        size = self.size(job)
        start = self.first_fit(size)
        if start is None:
            if not self.rules.contiguous.compaction or self.owner.count(None) < size:
                return False
            self.compact()
            start = self.first_fit(size)
        self.owner[start : start + size] = [job] * size
        return True

    def compact(self):
        before = {}
        for index, job in enumerate(self.owner):
            if job is not None:
                before.setdefault(job, index)
        kept = [job for job in self.owner if job is not None]
        self.owner = kept + [None] * (len(self.owner) - len(kept))
        for job, start in before.items():
            if self.owner.index(job) != start:
                self.waited += self.stored(job) * width_of(self.rules, job) * self.copy_s

    def grow(self, job, tokens):
        return True

    def learn(self, job, tokens):
        pass

    def give_back(self, job, computed):
        self.owner = [None if owner is job else owner for owner in self.owner]

    def pause_s(self):
        waited, self.waited = self.waited, 0.0
        return waited


class LongWay:
    """vLLM's ``Scheduler.schedule``.

    Two differences: decoding goes before prompts in progress, and where a job of low priority
    preempts itself, those behind it go on.
    """

    def __init__(self, rules, blocks, *, copy_s=0.0):
        self.rules = rules
        self.by_priority = rules.scheduler.order == "priority"
        self.draft = rules.speculation.num_speculative_tokens if rules.speculation else 0
        self.rate = rules.speculation.tokens_per_step if rules.speculation else 1
        self.kv = (
            Space(rules, blocks, copy_s, lambda job: self.computed[job])
            if rules.kv_layout == "contiguous"
            else Blocks(rules, blocks)
        )
        self.spare = int(rules.watermark * blocks)
        self.waiting, self.running, self.computed, self.target = [], [], {}, {}
        self.scheduled, self.preempted, self.preemptions, self.steps = {}, [], 0, 0

    def decodes(self, job):
        return self.computed[job] >= self.target[job]

    def long(self, tokens):
        return tokens > (self.rules.long_prefill_token_threshold or math.inf)

    def chunk(self, left):
        return min(left, self.rules.long_prefill_token_threshold or left)

    def unfinished(self):
        """Return the prompts that this step does not finish."""
        return [
            job
            for job in self.running
            if not self.decodes(job)
            and self.computed[job] + self.scheduled.get(job, 0) < self.target[job]
        ]

    def room(self, job, tokens):
        return tokens + self.draft if tokens >= self.target[job] else tokens

    def preempt_one(self):
        victim = self.running[-1]
        if self.by_priority:
            worst = max(j.priority for j in self.running)
            victim = [j for j in self.running if j.priority == worst][-1]
        self.budget += self.scheduled.pop(victim, 0)
        self.running.remove(victim)
        self.kv.give_back(victim, self.computed.pop(victim))
        self.waiting.insert(0, victim)
        self.preempted.append(victim)
        return victim

    def schedule(self):
        rules, self.scheduled, self.preempted = self.rules, {}, []
        self.budget = 0
        made = math.floor((self.steps + 1) * self.rate) - math.floor(self.steps * self.rate)
        for job in [j for j in self.running if self.decodes(j)]:
            if job not in self.running:
                continue
            tokens = self.computed[job] + made + self.draft
            while job in self.running and not self.kv.grow(job, tokens):
                self.preempt_one()
            if job in self.running:
                self.scheduled[job] = width_of(rules, job) * (1 + self.draft)
        self.budget = max(rules.max_num_batched_tokens - sum(self.scheduled.values()), 0)
        for job in [j for j in self.running if not self.decodes(j)]:
            if job not in self.running:
                continue
            new = min(self.chunk(self.target[job] - self.computed[job]), self.budget)
            while not self.kv.grow(job, self.room(job, self.computed[job] + new)):
                if self.preempt_one() is job:
                    break
            else:
                self.kv.learn(job, self.computed[job] + new)
                self.scheduled[job] = new
                self.budget -= new
        self.preemptions += len(self.preempted)
        if self.by_priority:
            self.waiting.sort(key=lambda job: job.priority)
        if not self.preempted:
            self.admit()
        return made

    def admit(self):
        rules, passed = self.rules, []
        while self.waiting and self.budget > 0:
            job = self.waiting[0]
            if sum(width_of(rules, one) for one in [*self.running, job]) > rules.max_num_seqs:
                break
            known = job.prompt_tokens + job.generated_tokens
            found = self.kv.find(job, known)
            before = len(found) * rules.block_size
            new = self.chunk(known - before)
            if not rules.chunked_prefill and new > self.budget:
                break
            new = min(new, self.budget)
            most = rules.max_num_partial_prefills
            if before + new < known and most and len(self.unfinished()) >= most:
                break
            longs = [j for j in self.unfinished() if self.long(self.target[j] - self.computed[j])]
            most = rules.max_long_partial_prefills
            if self.long(known - before) and most and len(longs) >= most:
                passed.append(self.waiting.pop(0))
                continue
            self.target[job] = known
            spare = self.spare if self.scheduled else 0
            if not self.kv.admit(job, found, self.room(job, before + new), spare):
                break
            self.kv.learn(job, before + new)
            self.waiting.pop(0)
            self.running.append(job)
            self.computed[job] = before
            self.scheduled[job] = new
            self.budget -= new
            if math.isnan(job.batch_in_s):
                job.cached_tokens = before
        self.waiting[:0] = passed

    def seconds(self):
        prefill = decode = context = 0
        for job, new in self.scheduled.items():
            if self.decodes(job):
                width = width_of(self.rules, job)
                decode += width
                context += (job.prompt_tokens + job.generated_tokens) * width
            else:
                prefill += new
        if not self.draft or not decode:
            return LAW.seconds(prefill, 0, decode, context) + self.kv.pause_s()
        cost = self.draft * self.rules.speculation.draft_cost_fraction
        draft_s = cost * LAW.seconds(0, 0, decode, context)
        return LAW.seconds(prefill + self.draft * decode, 0, decode, context) + draft_s

    def run(self, arrivals):
        now, pending, done = 0.0, list(arrivals), 0
        while done < len(arrivals):
            while pending and pending[0][0] <= now:
                self.waiting.append(pending.pop(0)[1])
            made = self.schedule()
            if not self.running:
                now = pending[0][0]
                continue
            for job in self.scheduled:
                if math.isnan(job.batch_in_s):
                    job.batch_in_s = now
            now += self.seconds()
            self.steps += 1
            for job in self.step_done(made, now):
                job.decode_end_s = now
                self.running.remove(job)
                self.kv.give_back(job, self.computed.pop(job))
                done += 1

    def step_done(self, made, now):
        """Book what the step computed; return who is done, who had the fewest tokens to go first.

        Of those that decode; then come those whose first token was their last.
        """
        left = {}
        for job in sorted(self.scheduled, key=lambda job: not self.decodes(job)):
            if self.decodes(job):
                self.computed[job] += made
                left[job] = job.output_tokens - job.generated_tokens - made
                job.generated_tokens = min(job.generated_tokens + made, job.output_tokens)
                continue
            self.computed[job] += self.scheduled[job]
            job.prefilled_tokens += self.scheduled[job]
            if self.decodes(job):
                job.generated_tokens += 1
                left[job] = math.inf if job.generated_tokens < job.output_tokens else 0.5
                if math.isnan(job.prefill_end_s):
                    job.prefill_end_s = now
        return sorted((job for job in left if left[job] <= 0.5), key=left.get)


@pytest.fixture(name="long_way", scope="session")
def _long_way():
    return LongWay


@pytest.fixture(name="law", scope="session")
def _law():
    return LAW
