//! Parts onto ranks, so that the busiest rank has as little to do as can be.
//!
//! Two heuristics, for neither is always better. *Greedy* takes the costliest part first and gives it to the rank with
//! the least to do. *Differencing* (Karmarkar and Karp's, for many ranks) puts off the decision: it merges the two
//! partial assignments whose ranks differ most, the fuller ranks of one with the emptier of the other, until one is
//! left. Both keep to the memory of a rank and put two parts of one table on different ranks. A third, *largest
//! first*, looks at memory alone, for the cases in which it is scarce.
//!
//! Ties go to the lower number, so the same parts give the same ranks.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::choices::Price;

/// A part to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Its table.
    pub table: usize,
    /// What it costs.
    pub price: Price,
}

/// How parts are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// The costliest part to the rank with the least to do.
    Greedy,
    /// Merging the partial assignments that differ most.
    Differencing,
    /// The largest part to the rank with the most memory left.
    LargestFirst,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 3] = [Method::Greedy, Method::Differencing, Method::LargestFirst];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Method::Greedy => "greedy",
            Method::Differencing => "differencing",
            Method::LargestFirst => "largest first",
        }
    }
}

/// What every rank has so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks {
    /// By rank.
    pub loads: Vec<Price>,
    /// Bytes that a rank may hold.
    pub capacity: u64,
}

impl Ranks {
    /// Ranks without anything.
    pub fn empty(count: usize, capacity: u64) -> Ranks {
        Ranks { loads: vec![Price::default(); count], capacity }
    }

    /// Adds a part to a rank.
    pub fn add(&mut self, rank: usize, price: Price) {
        self.loads[rank].time += price.time;
        self.loads[rank].memory += price.memory;
    }

    /// Takes a part from a rank.
    pub fn remove(&mut self, rank: usize, price: Price) {
        self.loads[rank].time -= price.time;
        self.loads[rank].memory -= price.memory;
    }

    /// Whether a rank can take another part.
    pub fn fits(&self, rank: usize, price: Price) -> bool {
        self.loads[rank].memory + price.memory <= self.capacity
    }

    /// What the busiest rank has to do.
    pub fn time_max(&self) -> u64 {
        self.loads.iter().map(|load| load.time).max().unwrap_or(0)
    }
}

/// The rank of every item on top of what `ranks` have, or `None` when the method finds no place for one.
pub fn place(method: Method, ranks: &Ranks, items: &[Item]) -> Option<Vec<usize>> {
    let mut places = vec![usize::MAX; items.len()];
    match method {
        Method::Greedy => {
            let order = order_by(items, |item| (item.price.time, item.price.memory));
            one_by_one(&mut ranks.clone(), items, order, &mut places, |load| (load.time, load.memory))?;
        }
        Method::LargestFirst => {
            let order = order_by(items, |item| (item.price.memory, item.price.time));
            one_by_one(&mut ranks.clone(), items, order, &mut places, |load| (load.memory, load.time))?;
        }
        Method::Differencing => differencing(ranks, items, &mut places)?,
    }
    Some(places)
}

fn order_by(items: &[Item], key: impl Fn(&Item) -> (u64, u64)) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&item| (Reverse(key(&items[item])), item));
    order
}

/// Gives each item in `order` to the allowed rank with the least of `key`.
fn one_by_one(
    ranks: &mut Ranks,
    items: &[Item],
    order: Vec<usize>,
    places: &mut [usize],
    key: impl Fn(&Price) -> (u64, u64),
) -> Option<()> {
    let mut taken: Vec<Vec<usize>> = vec![Vec::new(); ranks.loads.len()];
    for (item, &rank) in items.iter().zip(&*places) {
        if rank != usize::MAX {
            taken[rank].push(item.table);
        }
    }
    for place in order {
        let item = &items[place];
        let allowed = |rank: &usize| ranks.fits(*rank, item.price) && !taken[*rank].contains(&item.table);
        let rank =
            (0..ranks.loads.len()).filter(allowed).min_by_key(|&rank| (key(&ranks.loads[rank]), rank))?;
        ranks.add(rank, item.price);
        taken[rank].push(item.table);
        places[place] = rank;
    }
    Some(())
}

/// Some items that will share a rank; which one is open unless `rank` says so.
#[derive(Debug, Clone)]
struct Bin {
    price: Price,
    rank: Option<usize>,
    items: Vec<usize>,
}

/// A partial assignment: bins of different ranks, the costliest first; the ranks without a bin are empty.
#[derive(Debug)]
struct Partial {
    bins: Vec<Bin>,
}

impl Partial {
    fn sorted(mut bins: Vec<Bin>) -> Partial {
        bins.sort_by_key(|bin| (Reverse(bin.price.time), bin.rank, bin.items.first().copied()));
        Partial { bins }
    }

    /// What the busiest rank has more than the idlest.
    fn spread(&self, rank_count: usize) -> u64 {
        let least =
            if self.bins.len() == rank_count { self.bins.last().map_or(0, |bin| bin.price.time) } else { 0 };
        self.bins.first().map_or(0, |bin| bin.price.time) - least
    }
}

fn differencing(ranks: &Ranks, items: &[Item], places: &mut [usize]) -> Option<()> {
    let rank_count = ranks.loads.len();
    let mut partials: Vec<Option<Partial>> = Vec::new();
    let mut heap = BinaryHeap::new();
    let push = |partials: &mut Vec<Option<Partial>>, heap: &mut BinaryHeap<_>, partial: Partial| {
        heap.push((partial.spread(rank_count), Reverse(partials.len())));
        partials.push(Some(partial));
    };
    if ranks.loads.iter().any(|load| *load != Price::default()) {
        let bin = |(rank, &price): (usize, &Price)| Bin { price, rank: Some(rank), items: Vec::new() };
        push(&mut partials, &mut heap, Partial::sorted(ranks.loads.iter().enumerate().map(bin).collect()));
    }
    for (item, Item { price, .. }) in items.iter().enumerate() {
        if price.memory > ranks.capacity {
            return None;
        }
        let bin = Bin { price: *price, rank: None, items: vec![item] };
        push(&mut partials, &mut heap, Partial { bins: vec![bin] });
    }
    let mut left_over = Vec::new();
    while heap.len() > 1 {
        let mut take = || heap.pop().and_then(|(_, Reverse(place))| partials[place].take());
        let (Some(first), Some(second)) = (take(), take()) else { break };
        match merge(first, second, items, ranks) {
            Ok(merged) => push(&mut partials, &mut heap, merged),
            Err((kept, given_up)) => {
                left_over.extend(given_up.bins.into_iter().flat_map(|bin| bin.items));
                push(&mut partials, &mut heap, kept);
            }
        }
    }
    let last = heap.pop().and_then(|(_, Reverse(place))| partials[place].take());
    let mut filled = ranks.clone();
    for (number, bin) in last.into_iter().flat_map(|partial| partial.bins).enumerate() {
        let rank = bin.rank.unwrap_or(number);
        for item in bin.items {
            places[item] = rank;
            filled.add(rank, items[item].price);
        }
    }
    left_over.sort_by_key(|&item| (Reverse(items[item].price.time), item));
    one_by_one(&mut filled, items, left_over, places, |load| (load.time, load.memory))
}

/// Two partial assignments as one: the k-th costliest rank of the first with the k-th idlest of the second. When a
/// rank would hold too much or two parts of a table, the next idlest is tried; where none will do, the assignment
/// with more in it is kept and the other given up.
fn merge(
    first: Partial,
    second: Partial,
    items: &[Item],
    ranks: &Ranks,
) -> Result<Partial, (Partial, Partial)> {
    // The one whose ranks are decided keeps its bins; the other's are poured into them.
    let (into, from) =
        if second.bins.iter().any(|bin| bin.rank.is_some()) { (second, first) } else { (first, second) };
    let empty = ranks.loads.len() - into.bins.len();
    let mut pairs: Vec<(usize, Option<usize>)> = Vec::with_capacity(from.bins.len());
    let mut used = vec![false; into.bins.len()];
    for number in 0..from.bins.len() {
        if number < empty {
            pairs.push((number, None));
            continue;
        }
        let bin = &from.bins[number];
        let idlest = (0..into.bins.len()).rev().find(|&other| {
            let other_bin = &into.bins[other];
            !used[other]
                && other_bin.price.memory + bin.price.memory <= ranks.capacity
                && !shares_a_table(bin, other_bin, items)
        });
        let Some(other) = idlest else {
            let is_smaller = |a: &Partial, b: &Partial| count(a) < count(b);
            let decided = into.bins.iter().any(|bin| bin.rank.is_some());
            return Err(if !decided && is_smaller(&into, &from) { (from, into) } else { (into, from) });
        };
        used[other] = true;
        pairs.push((number, Some(other)));
    }
    let mut bins = into.bins;
    for ((_, other), bin) in pairs.into_iter().zip(from.bins) {
        match other {
            None => bins.push(bin),
            Some(other) => {
                bins[other].price.time += bin.price.time;
                bins[other].price.memory += bin.price.memory;
                bins[other].items.extend(bin.items);
            }
        }
    }
    Ok(Partial::sorted(bins))
}

fn count(partial: &Partial) -> usize {
    partial.bins.iter().map(|bin| bin.items.len()).sum()
}

fn shares_a_table(a: &Bin, b: &Bin, items: &[Item]) -> bool {
    let (few, many) = if a.items.len() < b.items.len() { (a, b) } else { (b, a) };
    few.items.iter().any(|&x| many.items.iter().any(|&y| items[x].table == items[y].table))
}

/// Moves and swaps single parts while the busiest rank gets less to do, at most `rounds` times.
pub fn improve(ranks: &mut Ranks, items: &[Item], places: &mut [usize], rounds: usize) {
    for _ in 0..rounds {
        let Some(busiest) =
            (0..ranks.loads.len()).max_by_key(|&rank| (ranks.loads[rank].time, Reverse(rank)))
        else {
            return;
        };
        let Some((item, other)) = best_exchange(ranks, items, places, busiest) else { return };
        let swap = |ranks: &mut Ranks, places: &mut [usize], item: usize, to: usize| {
            ranks.remove(places[item], items[item].price);
            ranks.add(to, items[item].price);
            places[item] = to;
        };
        match other {
            Other::Rank(rank) => swap(ranks, places, item, rank),
            Other::Item(other) => {
                let rank = places[other];
                swap(ranks, places, item, rank);
                swap(ranks, places, other, busiest);
            }
        }
    }
}

/// What an item changes places with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Rank(usize),
    Item(usize),
}

/// The move or swap after which the busier of the two ranks has the least to do, if that is less than now.
fn best_exchange(ranks: &Ranks, items: &[Item], places: &[usize], busiest: usize) -> Option<(usize, Other)> {
    let load = ranks.loads[busiest];
    let idlest = (0..ranks.loads.len()).min_by_key(|&rank| (ranks.loads[rank].time, rank))?;
    let holds = |rank: usize, table: usize, but: usize| {
        (0..items.len()).any(|i| i != but && places[i] == rank && items[i].table == table)
    };
    let mut best: Option<(u64, usize, Other)> = None;
    let mut offer = |after: u64, item: usize, other: Other| {
        if after < load.time && best.is_none_or(|(least, ..)| after < least) {
            best = Some((after, item, other));
        }
    };
    for item in (0..items.len()).filter(|&item| places[item] == busiest) {
        let price = items[item].price;
        let moved = (ranks.loads[idlest].time + price.time).max(load.time - price.time);
        if ranks.fits(idlest, price) && moved < load.time && !holds(idlest, items[item].table, item) {
            offer(moved, item, Other::Rank(idlest));
        }
        for other in (0..items.len()).filter(|&other| places[other] != busiest) {
            let (rank, gets) = (places[other], items[other].price);
            if gets.time >= price.time {
                continue;
            }
            let there = ranks.loads[rank].time - gets.time + price.time;
            let after = there.max(load.time - price.time + gets.time);
            let fits = ranks.loads[rank].memory - gets.memory + price.memory <= ranks.capacity
                && load.memory - price.memory + gets.memory <= ranks.capacity;
            let is_better = after < load.time && fits;
            if is_better
                && !holds(rank, items[item].table, other)
                && !holds(busiest, items[other].table, item)
            {
                offer(after, item, Other::Item(other));
            }
        }
    }
    best.map(|(_, item, other)| (item, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(times: &[u64]) -> Vec<Item> {
        let item = |(table, &time)| Item { table, price: Price { time, memory: 1 } };
        times.iter().enumerate().map(item).collect()
    }

    fn time_max(ranks: &Ranks, items: &[Item], places: &[usize]) -> u64 {
        let mut filled = ranks.clone();
        items.iter().zip(places).for_each(|(item, &rank)| filled.add(rank, item.price));
        filled.time_max()
    }

    #[test]
    fn differencing_finds_what_greedy_misses() {
        // The classic: 8+7 = 6+5+4, but greedy ends with 17 against 13.
        let (items, ranks) = (items(&[8, 7, 6, 5, 4]), Ranks::empty(2, 100));
        let max = |method| time_max(&ranks, &items, &place(method, &ranks, &items).unwrap());
        assert_eq!(max(Method::Greedy), 17);
        assert_eq!(max(Method::Differencing), 16);
        let mut places = place(Method::Greedy, &ranks, &items).unwrap();
        let mut filled = ranks.clone();
        items.iter().zip(&places).for_each(|(item, &rank)| filled.add(rank, item.price));
        improve(&mut filled, &items, &mut places, 10);
        assert_eq!(filled.time_max(), time_max(&ranks, &items, &places));
        assert!(filled.time_max() <= 16, "{filled:?}");
    }

    #[test]
    fn what_ranks_have_already_counts() {
        let mut ranks = Ranks::empty(3, 100);
        ranks.add(1, Price { time: 50, memory: 10 });
        let items = items(&[20, 20, 10]);
        for method in [Method::Greedy, Method::Differencing] {
            let places = place(method, &ranks, &items).unwrap();
            assert!(!places.contains(&1), "{method:?} {places:?}");
        }
    }

    #[test]
    fn memory_and_tables_keep_parts_apart() {
        let price = Price { time: 10, memory: 60 };
        let items: Vec<Item> = (0..3).map(|table| Item { table, price }).collect();
        for method in Method::ALL {
            let mut places = place(method, &Ranks::empty(3, 100), &items).unwrap();
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2], "{method:?}");
            assert_eq!(place(method, &Ranks::empty(2, 100), &items), None, "{method:?}");
        }
        let same: Vec<Item> =
            [1, 1, 50].map(|time| Item { table: 7, price: Price { time, memory: 1 } }).into();
        for method in Method::ALL {
            let mut places = place(method, &Ranks::empty(3, 100), &same).unwrap();
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2], "{method:?}");
        }
    }
}
