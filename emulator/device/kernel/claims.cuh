// Shares of a work that blocks claim as they get on. Memory does not serve all multiprocessors alike: of equal shares, the
// fastest of an H200 are done after half the time of the slowest.
#pragma once
#include "merged.cuh"

// What a team takes in each of its turns. The shares of the first turns lie `step` apart; later ones are claimed some turns
// ahead by the team's leader, from a counter in the workspace that the plan gave the work. All teams of all blocks take part,
// and between two turns a team meets at a barrier. Every team claims until there is nothing left, once in vain: so it is known
// how often the counter counts, and it is at 0 again in the end.
struct Claims {
    static constexpr u32 QUEUE = 16, NEVER_CLAIMED = 0xffffffff;
    // Where a team's leader leaves what it has claimed, for each of its next turns.
    struct __align__(8) Queue {
        u32* counter;
        u32 shares[QUEUE];
    };
    // In the staging, behind what warps exchange: two places of 16 bytes for each.
    static constexpr u32 AT = STAGING_AT + 2 * WORKER_WARPS * VECTOR_BYTES;
    static_assert(AT % 8 == 0 && AT + WORKER_WARPS * sizeof(Queue) <= STAGING_AT + STAGING_BYTES, "for each warp");

    u32 place;        // of the counter in the workspace, in 1024 bytes, plus 1
    u32 count;        // shares in all
    u32 first, step;  // step: the number of teams
    u32 fixed;        // turns whose shares are not claimed
    u32 team;         // of the block
    u32 claimed = 0;  // what the counter showed: the leader's

    // Where the counter of `w` is. The host's number among what handlers keep: those of two tensors do not use it.
    DEV static u32 of(const Work& w) { return in_shared(w).detail[CLAIMS_AT]; }

    // `where`: of the counter; 0 for none. `ahead`: turns between a share's being asked for (`at`) and its turn, at most. Worth
    // it from a few claims for each team on.
    DEV Claims(u32 where, u32 shares, u32 begin, u32 teams, u32 which, u32 ahead)
        : place(where), count(shares), first(begin), step(teams), fixed(ahead + 2), team(which) {
        if (place == 0 || count < 2 * fixed * step) fixed = NEVER_CLAIMED;
    }
    // Called by the whole team, once the work may begin and before the first claim.
    DEV void begin(const Block& block, bool leads) {
        if (!any() || !leads) return;
        queue().counter = reinterpret_cast<u32*>(block.launch()->workspace + static_cast<u64>(place - 1) * 1024);
    }
    DEV bool any() const { return fixed != NEVER_CLAIMED; }
    // The share of a turn; `count` or more behind the last one.
    DEV u32 at(u32 turn) const { return turn < fixed ? first + turn * step : queue().shares[turn % QUEUE]; }

    // Called by the whole team, in each turn but its last.
    DEV void claim(u32 turn, bool leads) {
        if (!any()) return;
        if (leads) publish(turn);
        __syncwarp();  // of a team that is one warp
    }

  private:
    DEV volatile Queue& queue() const { return reinterpret_cast<Queue*>(shared_memory_anew() + AT)[team]; }

    // Lets the team know the claim of the turn before, which took its time, and makes the next one.
    DEV void publish(u32 turn) {
        volatile Queue& mine = queue();
        if (turn > 0) {
            const u32 share = fixed * step + claimed;
            mine.shares[(turn - 1 + fixed) % QUEUE] = share;
            if (share >= count) return;
        }
        claimed = fetch_count_relaxed(mine.counter, count - fixed * step + step - 1);
    }
};
