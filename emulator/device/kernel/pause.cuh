// A run in several launches, where no memory reaches from rank to rank: a launch ends at a collective, which the host executes
// (emulator/device/segments.py), and the next one goes on behind it. Of the machine itself it takes along what the scalar unit
// holds; all else is in the program's memory. Like a HALT, a pause is the end of every block, once all its works are done.
#pragma once
#include "decode.cuh"

#ifdef DLA_RANKS
static_assert(sizeof(Scalars) == sizeof(Pause::scalars), "the host makes room for all of it");

DEV const Mailbox& own_mailbox(const Launch& launch) { return launch.mailboxes[launch.rank]; }

DEV void copy_words(u32* to, const u32* from, u32 bytes, u32 lane) {
    for (u32 i = lane; i < bytes / sizeof(u32); i += WARP) to[i] = from[i];
}

// Keeps for the next launch what it needs, and for the host the operands of the collective.
DEV void pause(const Launch& launch, const Work& w, const Scalars& m, u64 steps, u32 lane) {
    Pause* const to = own_mailbox(launch).pauses;
    copy_words(reinterpret_cast<u32*>(to->operands), reinterpret_cast<const u32*>(w.operands), sizeof(to->operands), lane);
    copy_words(to->scalars, reinterpret_cast<const u32*>(&m), sizeof(m), lane);
    if (lane == 0) {
        to->instruction = w.instruction;
        to->steps = steps;
    }
}

// Takes up what the launch before kept. Gives the instruction to go on with: the first one, where there was no launch before.
DEV u32 resume(const Launch& launch, Scalars& m, u64& steps, u32 lane) {
    const Pause* const from = own_mailbox(launch).resumes;
    Pause* const to = own_mailbox(launch).pauses;
    if (to && blockIdx.x == 0 && lane == 0) to->instruction = launch.instructions;  // unless it pauses
    if (!from) return 0;
    copy_words(reinterpret_cast<u32*>(&m), from->scalars, sizeof(m), lane);
    __syncwarp();
    steps = from->steps;
    return from->instruction + 1;
}
#endif
