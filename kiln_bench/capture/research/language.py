"""Text models: encoders and decoders by step, pointers, beams, trees, taggers, retrieval."""

from __future__ import annotations

import math
import random
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from kiln_bench.capture.research.sample import sample, tokens

PAD, SOS, EOS = 0, 1, 2


def source_and_target(vocab):
    return lambda rows, length: {
        "src": torch.randint(3, vocab, (rows, length)), "trg": torch.randint(3, vocab, (rows, length // 2)),
    }  # fmt: skip


class AdditiveAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn, self.v = nn.Linear(2 * dim, dim), nn.Parameter(torch.rand(dim))

    def forward(self, hidden, outputs):
        h = hidden.unsqueeze(1).repeat(1, outputs.size(1), 1)
        energy = torch.tanh(self.attn(torch.cat([h, outputs], 2))).transpose(1, 2)
        v = self.v.repeat(outputs.size(0), 1).unsqueeze(1)
        return F.softmax(torch.bmm(v, energy).squeeze(1), dim=1).unsqueeze(1)


@sample(12, 8, inputs=source_and_target(12))
class Seq2SeqTeacher(nn.Module):
    """A decoder by step, with the true word or its own by a coin."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.embed, self.vocab = nn.Embedding(vocab, dim, padding_idx=PAD), vocab
        self.encoder, self.cell = nn.GRU(dim, dim, batch_first=True, bidirectional=True), nn.GRUCell(2 * dim, dim)
        self.attention, self.out = AdditiveAttention(dim), nn.Linear(2 * dim, vocab)
        self.dim = dim

    def forward(self, src, trg, teacher_forcing_ratio=0.5):
        batch, max_len = trg.shape
        outputs = torch.zeros(max_len, batch, self.vocab)
        enc, hidden = self.encoder(self.embed(src))
        enc = enc[:, :, : self.dim] + enc[:, :, self.dim :]
        hidden, word = hidden.sum(0), torch.full((batch,), SOS)
        for t in range(max_len):
            context = self.attention(hidden, enc).bmm(enc).squeeze(1)
            hidden = self.cell(torch.cat([self.embed(word), context], 1), hidden)
            outputs[t] = self.out(torch.cat([hidden, context], 1))
            is_teacher = self.training and random.random() < teacher_forcing_ratio
            word = trg[:, t] if is_teacher else outputs[t].argmax(1)
        return outputs.transpose(0, 1), F.cross_entropy(
            outputs.transpose(0, 1).reshape(-1, self.vocab), trg.reshape(-1), ignore_index=PAD
        )


@sample(12, 8, inputs=source_and_target(12))
class PointerGenerator(nn.Module):
    """Copies by `scatter_add` into an extended vocabulary; coverage is summed."""

    def __init__(self, vocab, dim, extra=4):
        super().__init__()
        self.embed, self.extra = nn.Embedding(vocab, dim), extra
        self.enc, self.dec = nn.LSTM(dim, dim, batch_first=True), nn.LSTMCell(dim, dim)
        self.w_c, self.p_gen, self.out = nn.Linear(1, dim, bias=False), nn.Linear(3 * dim, 1), nn.Linear(2 * dim, vocab)

    def forward(self, src, trg):
        enc, (h, c) = self.enc(self.embed(src))
        h, c = h[-1], c[-1]
        coverage, loss = torch.zeros_like(src, dtype=torch.float), 0.0
        extended = src + (src % 3 == 0).long() * self.extra
        for t in range(trg.size(1)):
            x = self.embed(trg[:, t - 1] if t else torch.full_like(trg[:, 0], SOS))
            h, c = self.dec(x, (h, c))
            energy = (torch.tanh(enc + h.unsqueeze(1) + self.w_c(coverage.unsqueeze(-1)))).sum(-1)
            attn = F.softmax(energy, dim=-1)
            context = torch.einsum("bs,bsd->bd", attn, enc)
            p = torch.sigmoid(self.p_gen(torch.cat((context, h, x), 1)))
            vocab = p * F.softmax(self.out(torch.cat((h, context), 1)), dim=1)
            final = torch.cat([vocab, vocab.new_zeros(vocab.size(0), self.extra)], 1).scatter_add(
                1, extended, (1 - p) * attn
            )
            gold = torch.gather(final, 1, trg[:, t : t + 1]).squeeze(1)
            loss = loss - torch.log(gold + 1e-6) + torch.sum(torch.min(attn, coverage), 1)
            coverage = coverage + attn
        return loss.mean(), coverage


@sample(2, 8, inputs=lambda rows, length: {"points": torch.rand(rows, length, 2)}, lengths=(5, 6))
class PointerTour(nn.Module):
    """Visits points one by one, masks those it has been to, and adds up the length of the tour."""

    def __init__(self, dim_in, dim):
        super().__init__()
        self.embed, self.enc = nn.Linear(dim_in, dim), nn.LSTM(dim, dim, batch_first=True)
        self.cell, self.w1, self.w2, self.v = (
            nn.LSTMCell(dim, dim),
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
            nn.Linear(dim, 1, bias=False),
        )
        self.start = nn.Parameter(torch.zeros(dim))

    def forward(self, points):
        b, n, _ = points.shape
        e = self.embed(points)
        enc, (h, c) = self.enc(e)
        h, c, x = h.squeeze(0), c.squeeze(0), self.start.expand(b, -1)
        mask, picked, log_p = torch.zeros(b, n, dtype=torch.bool), [], []
        for _ in range(n):
            h, c = self.cell(x, (h, c))
            scores = 10 * torch.tanh(self.v(torch.tanh(self.w1(enc) + self.w2(h)[:, None])).squeeze(-1))
            logp = scores.masked_fill(mask, -1e9).log_softmax(-1)
            choice = logp.argmax(-1)
            mask = mask.scatter(1, choice.unsqueeze(1), True)
            x = e[torch.arange(b), choice]
            picked.append(choice)
            log_p.append(logp.gather(1, choice[:, None]))
        tour = torch.stack(picked, 1)
        route = points.gather(1, tour.unsqueeze(-1).expand(-1, -1, 2))
        length = (route - route.roll(-1, dims=1)).norm(p=2, dim=2).sum(1)
        return length, tour, (torch.cat(log_p, 1).sum(1) * (length - length.mean())).mean()


Beam = namedtuple("Beam", ["ids", "scores", "done"])


@sample(9, 8, beams=3, inputs=tokens(9))
class BeamDecoder(nn.Module):
    """A beam search of fixed length in tensors, with a penalty for length and blocked repeats."""

    def __init__(self, vocab, dim, beams, steps=4):
        super().__init__()
        self.embed, self.lm, self.head = (
            nn.Embedding(vocab, dim),
            nn.GRU(dim, dim, batch_first=True),
            nn.Linear(dim, vocab),
        )
        self.vocab, self.beams, self.steps = vocab, beams, steps

    def block_repeats(self, ids, logp):
        n = ids.shape[1]
        if n < 2:
            return logp
        same = ids[:, :-1] == ids[:, -1:]
        banned = torch.zeros_like(logp, dtype=torch.bool).scatter(1, ids[:, 1:], same)
        return logp.masked_fill(banned, -20.0)

    def forward(self, ids):
        b, k = ids.shape[0], self.beams
        beam = Beam(
            ids.repeat_interleave(k, 0)[:, -2:],
            torch.tensor([0.0] + [-1e9] * (k - 1)).repeat(b),
            torch.zeros(b * k, dtype=torch.bool),
        )
        for _ in range(self.steps):
            logp = self.head(self.lm(self.embed(beam.ids))[0][:, -1]).log_softmax(-1)
            logp = self.block_repeats(beam.ids, logp)
            frozen = torch.full_like(logp, -1e9)
            frozen[:, PAD] = 0
            logp = torch.where(beam.done[:, None], frozen, logp)
            scores, flat = (beam.scores[:, None] + logp).view(b, -1).topk(k, dim=1)
            parent = (torch.arange(b)[:, None] * k + torch.div(flat, self.vocab, rounding_mode="floor")).view(-1)
            token = (flat % self.vocab).view(-1)
            beam = Beam(
                torch.cat([beam.ids[parent], token[:, None]], 1), scores.view(-1), beam.done[parent] | (token == EOS)
            )
        lengths = (beam.ids != PAD).sum(1).float()
        final = (beam.scores / ((5 + lengths) / 6) ** 0.6).view(b, k)
        best = final.argmax(1)
        return beam.ids.view(b, k, -1)[torch.arange(b), best], final.max(1).values


@sample(
    12,
    8,
    inputs=lambda rows, length: {
        "ids": torch.randint(1, 12, (rows, length)),
        "lengths": torch.randint(1, length, (rows,)),
    },
)
class MaskedTagger(nn.Module):
    """A chain of labels: forward algorithm, score of the truth, and Viterbi with back pointers."""

    def __init__(self, vocab, dim, tags=4):
        super().__init__()
        self.embed, self.rnn = (
            nn.Embedding(vocab, dim, padding_idx=PAD),
            nn.LSTM(dim, dim // 2, bidirectional=True, batch_first=True),
        )
        self.emit = nn.Linear(dim, tags)
        self.start, self.end, self.trans = (
            nn.Parameter(torch.empty(*s).uniform_(-0.1, 0.1)) for s in ((tags,), (tags,), (tags, tags))
        )

    def partition(self, emissions, mask):
        score = self.start + emissions[:, 0]
        for i in range(1, emissions.shape[1]):
            nxt = torch.logsumexp(score.unsqueeze(2) + self.trans + emissions[:, i].unsqueeze(1), dim=1)
            score = torch.where(mask[:, i].unsqueeze(1), nxt, score)
        return torch.logsumexp(score + self.end, dim=1)

    def truth(self, emissions, tags, mask):
        b = torch.arange(tags.shape[0])
        score = self.start[tags[:, 0]] + emissions[b, 0, tags[:, 0]]
        for i in range(1, tags.shape[1]):
            score = score + (self.trans[tags[:, i - 1], tags[:, i]] + emissions[b, i, tags[:, i]]) * mask[:, i]
        last = mask.long().sum(dim=1) - 1
        return score + self.end[tags.gather(1, last[:, None]).squeeze(1)]

    def viterbi(self, emissions):
        score, history = self.start + emissions[:, 0], []
        for i in range(1, emissions.shape[1]):
            best, idx = (score.unsqueeze(2) + self.trans).max(dim=1)
            score = best + emissions[:, i]
            history.append(idx)
        path = [(score + self.end).argmax(1)]
        for idx in reversed(history):
            path.append(idx.gather(1, path[-1][:, None]).squeeze(1))
        return torch.stack(path[::-1], dim=1)

    def forward(self, ids, lengths):
        mask = torch.arange(ids.size(1))[None] < lengths[:, None]
        emissions = self.emit(self.rnn(self.embed(ids * mask))[0])
        tags = ids % self.trans.shape[0]
        nll = self.partition(emissions, mask) - self.truth(emissions, tags, mask)
        return nll.mean(), self.viterbi(emissions)


@sample(
    20,
    8,
    inputs=lambda rows, length: {
        "ids": torch.randint(1, 20, (rows, length)),
        "lengths": torch.arange(length, length - rows, -1),
    },
)
class PackedClassifier(nn.Module):
    """Packed sequences: lengths that the program knows are read by the host."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(vocab, dim), nn.LSTM(dim, dim, batch_first=True)
        self.attn, self.out = nn.Linear(dim, 1), nn.Linear(dim, 3)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, (h, _) = self.rnn(packed)
        output, lens = pad_packed_sequence(output, batch_first=True, padding_value=0.0)
        mask = torch.arange(output.size(1)).expand(len(lens), output.size(1)) < lens.unsqueeze(1)
        a = self.attn(output).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out(torch.bmm(a.unsqueeze(1), output).squeeze(1) + h[-1])


@sample(30, 8, inputs=tokens(30))
class CharWordEncoder(nn.Module):
    """Convolutions of several widths over characters, highways, and a softmax in clusters."""

    def __init__(self, chars, dim, widths=(1, 2, 3), filters=4):
        super().__init__()
        self.embed = nn.Embedding(chars, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, filters, w) for w in widths)
        n = filters * len(widths)
        self.gate, self.proj = nn.Linear(n, n), nn.Linear(n, n)
        self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(n, 12, cutoffs=[4, 8])

    def forward(self, ids):
        windows = ids.unfold(1, 4, 2)
        b, w, k = windows.shape
        x = self.embed(windows.reshape(b * w, k)).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).max(dim=2).values for conv in self.convs], dim=-1)
        t = torch.sigmoid(self.gate(x))
        x = t * F.relu(self.proj(x)) + (1 - t) * x
        return x.view(b, w, -1), self.adaptive.log_prob(x).exp().sum()


@sample(16, 8, inputs=tokens(16), lengths=(7, 7))
class TreeReducer(nn.Module):
    """A child-sum tree over a heap: from leaves to root by levels of a list."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.ioux, self.iouh = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim, bias=False)
        self.fx, self.fh = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)

    def node(self, x, children):
        h_sum = sum((h for h, _ in children), torch.zeros_like(x))
        i, o, u = (self.ioux(x) + self.iouh(h_sum)).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u)
        for h, c_k in children:
            c = c + torch.sigmoid(self.fx(x) + self.fh(h)) * c_k
        return torch.sigmoid(o) * torch.tanh(c), c

    def visit(self, x, at):
        children = [self.visit(x, child) for child in (2 * at + 1, 2 * at + 2) if child < x.shape[1]]
        return self.node(x[:, at], children)

    def forward(self, ids):
        return self.visit(self.embed(ids), 0)[0]


@dataclass
class ElectraOutput:
    loss: torch.Tensor
    replaced: torch.Tensor
    accuracy: float | torch.Tensor = 0.0


@sample(15, 8, inputs=tokens(15))
class ReplacedTokens(nn.Module):
    """A generator fills masks by Gumbel noise; a discriminator finds what was replaced."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.embed, self.vocab = nn.Embedding(vocab, dim), vocab
        self.generator = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, vocab))
        self.discriminator = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 1)

    def mask_subset(self, mask, prob):
        batch, seq_len = mask.shape
        max_masked = math.ceil(prob * seq_len)
        num_tokens = mask.sum(dim=-1, keepdim=True)
        excess = mask.cumsum(dim=-1) > (num_tokens * prob).ceil()
        rand = torch.rand((batch, seq_len)).masked_fill(~mask, -1e9)
        _, idx = rand.topk(max_masked, dim=-1)
        idx = (idx + 1).masked_fill_(excess[:, :max_masked], 0)
        return torch.zeros((batch, seq_len + 1)).scatter_(-1, idx, 1)[:, 1:].bool()

    def forward(self, ids):
        mask = self.mask_subset(ids != PAD, 0.3) & (ids != PAD)
        masked = ids.masked_fill(mask, SOS)
        logits = self.generator(self.embed(masked))
        mlm = F.cross_entropy(
            logits.transpose(1, 2), ids.masked_fill(~mask, -100), ignore_index=-100, reduction="sum"
        ) / mask.sum().clamp(min=1)
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
        sampled = ((logits + noise).argmax(-1)).detach()
        disc_in = torch.where(mask, sampled, ids)
        labels = (disc_in != ids).float()
        scores = self.head(self.discriminator(self.embed(disc_in))[0]).squeeze(-1)
        loss = mlm + 50.0 * F.binary_cross_entropy_with_logits(scores, labels)
        return ElectraOutput(loss, replaced=labels.sum(), accuracy=((scores > 0).float() == labels).float().mean())


@sample(20, 8, inputs=lambda rows, length: {"ids": [torch.randint(1, 20, (length - i,)) for i in range(rows)]})
class RaggedEncoder(nn.Module):
    """A list of sequences, padded inside; each is averaged over its own length."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True, dropout=0.0)

    def forward(self, ids):
        lengths = torch.tensor([len(row) for row in ids])
        padded = pad_sequence(ids, batch_first=True, padding_value=PAD)
        mask = padded.eq(PAD)
        h = self.layer(self.embed(padded), src_key_padding_mask=mask)
        h = h.masked_fill(mask.unsqueeze(-1), 0.0)
        return h.sum(1) / lengths.unsqueeze(1)


@sample(
    18,
    8,
    inputs=lambda rows, length: {
        "query": torch.randint(1, 18, (rows, 4)),
        "docs": torch.randint(0, 18, (rows, 2, length)),
    },
)
class LateInteraction(nn.Module):
    """ColBERT's sums of maxima, masks of padding and punctuation, and in-batch negatives."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.embed, self.lin = nn.Embedding(vocab, dim), nn.Linear(dim, 6, bias=False)
        self.skiplist = {0, 3, 7}

    def mask(self, ids):
        keep = torch.ones_like(ids, dtype=torch.bool)
        for token in sorted(self.skiplist):
            keep &= ids != token
        return keep.unsqueeze(-1).float()

    def encode(self, ids):
        return F.normalize(self.lin(self.embed(ids)), p=2, dim=-1)

    def forward(self, query, docs):
        b, n, l = docs.shape
        q, d = self.encode(query), self.encode(docs) * self.mask(docs)
        scores = torch.einsum("bqe,bnle->bnql", q, d).amax(-1).sum(-1)
        inbatch = torch.einsum("aqe,ble->abql", q, d[:, 0]).max(-1).values.sum(2)
        labels = torch.arange(b)
        return scores, F.cross_entropy(inbatch, labels) + F.cross_entropy(scores, torch.zeros_like(labels))


@sample(14, 8, inputs=tokens(14))
class PermutedLanguageModel(nn.Module):
    """Two streams of attention with masks from a permutation (XLNet)."""

    def __init__(self, vocab, dim, heads=2):
        super().__init__()
        self.embed, self.g0, self.heads = nn.Embedding(vocab, dim), nn.Parameter(torch.randn(dim) * 0.1), heads
        self.q, self.kv, self.pos, self.out = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Embedding(32, dim),
            nn.Linear(dim, vocab),
        )

    def attend(self, q, kv, mask):
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        q, (k, v) = split(self.q(q)), map(split, self.kv(kv).chunk(2, -1))
        s = (q @ k.mT).masked_fill(~mask[:, None], -1e9)
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, ids):
        b, n = ids.shape
        order = torch.rand(b, n).argsort(-1).argsort(-1) if self.training else torch.arange(n).expand(b, n)
        content_mask = order[:, :, None] >= order[:, None, :]
        query_mask = order[:, :, None] > order[:, None, :]
        h = self.embed(ids) + self.pos.weight[:n]
        g = self.g0.expand(b, n, -1) + self.pos.weight[:n]
        g, h = g + self.attend(g, h, query_mask), h + self.attend(h, h, content_mask)
        keep = order >= n // 2
        losses = F.cross_entropy(self.out(g).transpose(1, 2), ids, reduction="none")
        return (losses * keep).sum() / keep.sum(), h
