// The loader: one warp of each block hands out the stages of the ring, and fills those of the hot paths by copies that run
// ahead of the workers, across instructions.
#pragma once
#include "state.cuh"
#include "waiting.cuh"

// What comes ahead of a product's rows, at most, where its depth needs more of the ring than there is: what is still on its way from
// memory when the work before is done, the release of that waits for.
constexpr u32 AHEAD_GRANULES = GRANULES * 2 / 3;

struct Loader : LoaderState {
    u32 ring;  // where the ring lies, in the shared window

    DEV Loader() : Loader(shared_state().loader) {}
    DEV explicit Loader(const LoaderState& state) : LoaderState(state), ring(shared_address(shared_memory_anew())) {}
    DEV void keep() const { shared_state().loader = *this; }

    // The next stage, once nobody uses it; false if the run is over. Its full barrier waits for `bytes` of copies, all of
    // which the caller has to start: also after a trap, which the loader hears of here and nowhere else. Without bytes,
    // the stage is scratch memory of the workers.
    DEV bool claim(Stage& stage, u32 granules, u32 bytes) {
        const RingPlace before = place;
        stage = place.next(granules);
        u32 way = way_to_end(before, stage, granules);
        while (room < way && oldest != stage.sequence) {
            if (!take_back_oldest()) {
                place = before;
                return false;
            }
        }
        if (oldest == stage.sequence) {  // nobody uses any of it
            room = GRANULES;
            way = granules;
        }
        room -= way;
        shared_state().stage_way[stage.barrier()] = way;
        alike = bytes == 0 ? 0 : granules == size ? alike + 1 : 1;
        size = granules;
        if (bytes) {
            mbarrier_arrive_expect(full(stage), bytes);
        } else {
            scratch |= 1u << stage.barrier();
            mbarrier_arrive(full(stage));
        }
        return true;
    }
    // Tells the workers where the tile begins whose first stage is the next one to be claimed. They read it before they release
    // that stage, or the tile's second one, where stages are large (boxes.cuh). What it replaces they have read.
    DEV void tell(u32 row, u32 column) { tell(ProductCorner::at(row, column)); }
    DEV void tell(const ProductCorner& corner) { shared_state().corners[place.sequence % CORNERS] = corner; }
    // Claims `count` stages of one size, and lets start(address, full) start the copies to each; false if the run is over.
    // Once the ring holds nothing else, each takes the place of the oldest one, and little has to be worked out.
    template <class Start> DEV bool fill(u32 count, u32 granules, u32 bytes, Start start) {
        const u32 lap = GRANULES / granules;
        u32 i = 0;
#pragma unroll 1
        for (; i < count && (room != 0 || size != granules || alike < lap || lap * granules != GRANULES); ++i) {
            Stage stage;
            if (!claim(stage, granules, bytes)) return false;
            start(address(stage), full(stage));
        }
#pragma unroll 1
        for (; i < count; ++i) {
            if (!wait_or_stop(empty(oldest), oldest / RING_BARRIERS % 2)) return false;
            oldest += 1;
            const Stage stage{place.sequence, place.granule == GRANULES ? 0 : place.granule};
            place = {place.sequence + 1, stage.granule + granules};
            shared_state().stage_way[stage.barrier()] = granules;
            mbarrier_arrive_expect(full(stage), bytes);
            start(address(stage), full(stage));
        }
        return true;
    }
    // fill() for what a launch begins with, stages of one size, of which the ring holds a number: there is less to work out. No more than
    // `most` are under way until the ring is full.
    template <class Start> DEV bool fill_first(u32 count, u32 granules, u32 bytes, u32 most, Start start) {
        size = granules;
#pragma unroll 1
        for (; count != 0; --count) {
            if (room != 0) {
                if (place.sequence >= most && !wait_or_stop(full(place.sequence - most), 0)) return false;
                room -= granules;
                alike += 1;
            } else {
                if (!wait_or_stop(empty(oldest), oldest / RING_BARRIERS % 2)) return false;
                oldest += 1;
            }
            const Stage stage{place.sequence, place.granule == GRANULES ? 0 : place.granule};
            place = {place.sequence + 1, stage.granule + granules};
            shared_state().stage_way[stage.barrier()] = granules;
            mbarrier_arrive_expect(full(stage), bytes);
            start(address(stage), full(stage));
        }
        return true;
    }
    // The same where ahead(address, full) starts the copies of what nothing in the program writes, and behind(address, full)
    // the others: unless `ready`, those that the ring has room for are on their way before it is known that the others can be
    // started. A stage that has been claimed gets all its copies, also where the run is over.
    // `most`: granules of these.
    template <class Ahead, class Behind>
    DEV bool fill_ahead(u32 count, u32 granules, u32 bytes, bool ready, Ahead ahead, Behind behind, u32 most = GRANULES) {
        return begin_ahead(count, granules, bytes, ready, ahead, behind, most) && fill(count, granules, bytes, [&](u32 to, u64* full) {
            ahead(to, full);
            behind(to, full);
        });
    }
    // The first stages of that, unless `ready`; `count` is what is left.
    template <class Ahead, class Behind>
    DEV bool begin_ahead(u32& count, u32 granules, u32 bytes, bool ready, Ahead ahead, Behind behind, u32 most = GRANULES) {
        if (ready || found_ready()) return true;
        bool going_on = true;
        RingPlace again = place;
        Stage stage;
        for (u32 left = count; left != 0 && has_room(again, granules, most); --left) {
            going_on = claim(stage, granules, bytes);
            if (!going_on) break;
            ahead(address(stage), full(stage));
        }
        u32 claimed = place.sequence - again.sequence;
        count -= claimed;
        stage = again.next(granules);
        u32 to = address(stage);
        u64* at = full(stage);  // known before the wait: the first copy starts right after it
        wait_ready();
        for (; claimed != 0; --claimed) {
            behind(to, at);
            stage = again.next(granules);
            to = address(stage);
            at = full(stage);
        }
        return going_on;
    }
    // Whether the next stage can be had, now or later, while nobody releases those claimed since the ring was at `since`, and
    // they are `most` granules with it.
    DEV bool has_room(const RingPlace& since, u32 granules, u32 most) const {
        RingPlace after = place;
        const u32 way = way_to_end(place, after.next(granules), granules);
        if (since.sequence == place.sequence) return true;
        const u32 used = place.granule + (place.granule <= since.granule ? GRANULES : 0) - since.granule;
        return used + way <= most;
    }
    // Waits until copies to few enough stages are under way: more of them build a queue that every other access, of all
    // blocks, waits in, and a release even waits for its end. A block whose ring is mostly empty may have one more.
    DEV void pace(u32 stages) {
        while (oldest != place.sequence && mbarrier_passed(empty(oldest), oldest / RING_BARRIERS % 2))
            took_back_oldest();
        if (static_cast<i32>(oldest - landed) > 0) landed = oldest;
        const u32 most = room > GRANULES / 2 || oldest == place.sequence ? stages + 1 : stages;
        for (; place.sequence - landed >= most; ++landed)
            wait_phase(full(landed), landed / RING_BARRIERS % 2);
    }
    DEV u64* full(const Stage& stage) { return full(stage.sequence); }
    // Where the stage lies, in the shared window.
    DEV u32 address(const Stage& stage) const { return ring + stage.offset(); }

    // Waits until everything that the present work depends on is done; copies started afterwards see it.
    DEV void wait_ready() {
        const u32 now = anew(taken);  // not worked out before the copies of what came earlier: registers are few
        wait_phase(&shared_state().ready[now % WORKS], now / WORKS % 2);
        fence_proxy_global();
    }

    // Whether that is so already: the first instruction of a launch, or a branch of its own. Then the first stage is what to hurry
    // for, with all its copies, instead of a part of each stage.
    DEV bool found_ready() {
        if (!mbarrier_passed(&shared_state().ready[taken % WORKS], taken / WORKS % 2)) return false;
        fence_proxy_global();
        return true;
    }

    // Lets stages of the `wanted` kind be claimed; false if the run is over. For shared ones, waits for the pair's other
    // loader: it has come to the same work, and its ring is empty, too, or holds shared stages.
    DEV bool use(u32 wanted) {
        if (wanted != kind) {
            while (oldest != place.sequence) {
                if (!take_back_oldest()) return false;
            }
            const RingPlace left = place;
            place = shared_state().other_place;
            shared_state().other_place = left;
            kind = wanted;
            room = GRANULES;
            oldest = landed = place.sequence;
            size = alike = 0;
        }
        if (wanted == OWN_STAGES) return true;
        tell_other();
        return hear_other();
    }
    // The two halves of that: this block's ring may take what the other one shares, and the other one's may.
    DEV void tell_other() {
        mbarrier_arrive(&shared_state().opened);
        mbarrier_arrive_there(&shared_state().opened);
    }
    DEV bool hear_other() { return wait_or_stop(&shared_state().opened, shared_state().openings++ % 2); }
    // Waits until the last stage is full: the other block has brought its share of everything.
    DEV void wait_full() {
        if (oldest != place.sequence) wait_or_stop(full(place.sequence - 1), (place.sequence - 1) / RING_BARRIERS % 2);
    }

    // Waits for all copies that were started: a block must not end before them. After a trap, not all that full barriers wait
    // for may have been started, by this block or the other one: then those that were are given time to land.
    DEV void finish() {
        for (; oldest != place.sequence; ++oldest) {
            const u64 end = nanoseconds() + LANDING_NS;
            while (!mbarrier_test(full(oldest), oldest / RING_BARRIERS % 2)) {
                if (stopped(shared_state()) && nanoseconds() > end) return;
            }
        }
    }

  private:
    DEV u64* full(u32 sequence) { return &shared_state().stages[kind].full[sequence % RING_BARRIERS]; }
    DEV u64* empty(u32 sequence) { return &shared_state().stages[kind].empty[sequence % RING_BARRIERS]; }

    // Granules from `before` to the end of the stage claimed there: with those that it skips at the end of the ring.
    DEV static u32 way_to_end(const RingPlace& before, const Stage& stage, u32 granules) {
        return stage.granule + granules - before.granule + (stage.granule < before.granule ? GRANULES : 0);
    }
    // Waits until the oldest stage is released; false if the run is over.
    DEV bool take_back_oldest() {
        if (!wait_or_stop(empty(oldest), oldest / RING_BARRIERS % 2)) return false;
        took_back_oldest();
        return true;
    }
    // What follows once it is released.
    DEV void took_back_oldest() {
        const u32 barrier = oldest % RING_BARRIERS;
        // Workers read and wrote scratch memory themselves; copies are another proxy.
        if (scratch >> barrier & 1) fence_proxy_shared();
        scratch &= ~(1u << barrier);
        room += shared_state().stage_way[barrier];
        oldest += 1;
    }
};
