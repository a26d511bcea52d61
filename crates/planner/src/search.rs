//! Which choice for every table, and which rank for every part.
//!
//! Splitting matters more than the heuristic that places: one table that dominates sets the busiest rank's time,
//! whatever else is done. So several limits on the largest part are tried, from none to a small share of the mean
//! load; under each limit every table takes the choice that costs all ranks the least, and all parts are placed by
//! every method. Then the busiest rank's costliest table is split further for as long as that helps. What is best
//! and fits is kept.
//!
//! Nothing here knows what a table is: choices have prices, and that is all. So other planners' prices can be
//! searched as well.

use crate::{
    choices::{Choice, Price, Spread},
    place::{Item, Method, Ranks, improve, place},
};

/// Limits on the largest part that are tried: the mean load divided by these, and none.
const DIVISORS: [u64; 6] = [0, 1, 2, 4, 8, 16];

/// Times that the busiest rank's costliest table is split further.
const SPLITS_MAX: usize = 24;

/// Single moves and swaps at the end.
const MOVES_MAX: usize = 200;

/// Parts of the memory that a table's part may fill at most; smaller ones are tried where larger do not fit.
const MEMORY_PARTS: [u64; 5] = [1, 2, 4, 8, 16];

/// A plan within one part in so many of the bound is as good as the prices are.
const NEAR_ENOUGH: u64 = 500;

/// The ranks that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Hosts.
    pub hosts: usize,
    /// Ranks of each.
    pub ranks_per_host: usize,
    /// Bytes of each rank.
    pub capacity: u64,
    /// The only method to place parts by; `None` takes the best of all.
    pub method: Option<Method>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The place of each table's choice among its choices.
    pub choices: Vec<usize>,
    /// The rank of every part of every table.
    pub ranks: Vec<Vec<usize>>,
    /// What every rank has.
    pub loads: Vec<Price>,
    /// How the parts were placed.
    pub method: Method,
}

/// What no plan can be faster than.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// All tables at their cheapest, evenly over all ranks.
    pub mean: u64,
    /// The table whose cheapest largest part is the costliest, and that part.
    pub largest: Option<(usize, u64)>,
}

impl Shape {
    /// All ranks.
    pub fn rank_count(self) -> usize {
        self.hosts * self.ranks_per_host
    }
}

impl Found {
    /// What the busiest rank has to do.
    pub fn time_max(&self) -> u64 {
        self.loads.iter().map(|load| load.time).max().unwrap_or(0)
    }
}

impl Bound {
    /// Of some tables on so many ranks.
    pub fn new(tables: &[Vec<Choice>], rank_count: usize) -> Bound {
        let cheapest =
            |choices: &[Choice]| choices.iter().map(|c| c.total_time(rank_count)).min().unwrap_or(0);
        let total: u64 = tables.iter().map(|choices| cheapest(choices)).sum();
        let smallest = |choices: &[Choice]| {
            choices.iter().map(|choice| choice.largest_time() + choice.everywhere.time).min().unwrap_or(0)
        };
        let largest = tables.iter().enumerate().map(|(table, choices)| (table, smallest(choices)));
        Bound {
            mean: total / rank_count as u64,
            largest: largest.max_by_key(|&(table, time)| (time, std::cmp::Reverse(table))),
        }
    }

    /// The larger of the two.
    pub fn time(self) -> u64 {
        self.mean.max(self.largest.map_or(0, |(_, time)| time))
    }
}

/// The best assignment found, or `None` when none fits the memory.
pub fn search(tables: &[Vec<Choice>], shape: Shape) -> Option<Found> {
    let bound = Bound::new(tables, shape.rank_count());
    // Where one table is the bound it can be met exactly, and then the text says that nothing is better.
    let slack = if bound.time() > bound.mean { 0 } else { bound.mean / NEAR_ENOUGH };
    let is_enough = |found: &Found| found.time_max() <= bound.time() + slack;
    let mut best: Option<Found> = None;
    for divisor in DIVISORS {
        let limit = bound.mean.checked_div(divisor).unwrap_or(u64::MAX);
        for elsewhere in Elsewhere::ALL {
            if best.as_ref().is_some_and(is_enough) {
                break;
            }
            if let Some(found) = fitting(tables, shape, limit, elsewhere)
                && best.as_ref().is_none_or(|best| found.time_max() < best.time_max())
            {
                best = Some(found);
            }
        }
    }
    let mut best = best?;
    for _ in 0..SPLITS_MAX {
        if is_enough(&best) {
            return Some(best);
        }
        let Some(found) = split_busiest(tables, &best, shape) else { break };
        best = found;
    }
    polish(tables, &mut best, shape);
    Some(best)
}

/// Whether anything fits at all.
pub fn is_feasible(tables: &[Vec<Choice>], shape: Shape) -> bool {
    Elsewhere::ALL.into_iter().any(|elsewhere| fitting(tables, shape, u64::MAX, elsewhere).is_some())
}

/// An assignment with no part above `limit`, where that can be, cut as little as memory allows.
fn fitting(tables: &[Vec<Choice>], shape: Shape, limit: u64, elsewhere: Elsewhere) -> Option<Found> {
    MEMORY_PARTS.into_iter().find_map(|parts| {
        let memory = shape.capacity / parts;
        let chosen: Option<Vec<usize>> =
            tables.iter().map(|choices| select(choices, shape, limit, memory, elsewhere)).collect();
        place_all(tables, &chosen?, shape)
    })
}

/// What tables may ask of the ranks that do not hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    /// Anything.
    All,
    /// No copies, which take memory.
    NoCopies,
    /// No time: a rank that is full already must not pool for other tables.
    NoTime,
}

impl Elsewhere {
    const ALL: [Elsewhere; 3] = [Elsewhere::All, Elsewhere::NoCopies, Elsewhere::NoTime];

    fn allows(self, choice: &Choice) -> bool {
        match self {
            Elsewhere::All => true,
            Elsewhere::NoCopies => choice.spread != Spread::Everywhere,
            Elsewhere::NoTime => choice.everywhere.time == 0,
        }
    }
}

/// The cheapest choice over all ranks whose parts keep to the limits; where none keeps to the time, the one with
/// the smallest parts.
fn select(choices: &[Choice], shape: Shape, limit: u64, memory: u64, elsewhere: Elsewhere) -> Option<usize> {
    let allowed = |choice: &Choice| {
        choice.largest_memory() <= memory
            && choice.everywhere.memory <= shape.capacity / 8
            && elsewhere.allows(choice)
    };
    let total = |choice: &Choice| choice.total_time(shape.rank_count());
    let all = || choices.iter().enumerate().filter(|(_, choice)| allowed(choice));
    let small = all().filter(|(_, choice)| choice.largest_time() <= limit);
    let cheapest = small.min_by_key(|&(place, choice)| (total(choice), place));
    cheapest
        .or_else(|| all().min_by_key(|&(place, choice)| (choice.largest_time(), total(choice), place)))
        .map(|(place, _)| place)
}

/// Places all parts of the chosen choices by every method.
fn place_all(tables: &[Vec<Choice>], chosen: &[usize], shape: Shape) -> Option<Found> {
    let fixed = place_bound(tables, chosen, shape)?;
    let items: Vec<Item> = items_of(tables, chosen);
    let mut best: Option<(u64, Vec<usize>, Method)> = None;
    for method in Method::ALL {
        // The last resort costs time; it is for what the others cannot place.
        if method == Method::LargestFirst && best.is_some() {
            break;
        }
        if shape.method.is_some_and(|only| only != method) {
            continue;
        }
        let Some(places) = place(method, &fixed.ranks, &items) else { continue };
        let mut filled = fixed.ranks.clone();
        items.iter().zip(&places).for_each(|(item, &rank)| filled.add(rank, item.price));
        let time = filled.time_max();
        if best.as_ref().is_none_or(|(least, ..)| time < *least) {
            best = Some((time, places, method));
        }
    }
    let (_, places, method) = best?;
    let mut ranks = fixed.places;
    let mut filled = fixed.ranks;
    for (item, rank) in items.iter().zip(places) {
        ranks[item.table].push(rank);
        filled.add(rank, item.price);
    }
    Some(Found { choices: chosen.to_vec(), ranks, loads: filled.loads, method })
}

/// The parts that may go to any rank, table by table.
fn items_of(tables: &[Vec<Choice>], chosen: &[usize]) -> Vec<Item> {
    let mut items = Vec::new();
    for (table, (choices, &place)) in tables.iter().zip(chosen).enumerate() {
        let choice = &choices[place];
        if choice.spread == Spread::Ranks {
            items.extend(choice.parts.iter().map(|&price| Item { table, price }));
        }
    }
    items
}

struct Fixed {
    ranks: Ranks,
    places: Vec<Vec<usize>>,
}

/// Places what is bound to all ranks, then what is bound to hosts: the costliest to the host with the least to do.
fn place_bound(tables: &[Vec<Choice>], chosen: &[usize], shape: Shape) -> Option<Fixed> {
    let rank_count = shape.rank_count();
    let mut ranks = Ranks::empty(rank_count, shape.capacity);
    let mut places = vec![Vec::new(); tables.len()];
    let mut groups = Vec::new();
    for (table, (choices, &place)) in tables.iter().zip(chosen).enumerate() {
        let choice = &choices[place];
        (0..rank_count).for_each(|rank| ranks.add(rank, choice.everywhere));
        match choice.spread {
            Spread::Ranks => {}
            Spread::Everywhere => {
                choice.parts.iter().enumerate().for_each(|(rank, &price)| ranks.add(rank, price));
                places[table] = (0..rank_count).collect();
            }
            Spread::Hosts => groups.extend(
                choice
                    .parts
                    .chunks(shape.ranks_per_host)
                    .enumerate()
                    .map(|(group, parts)| (table, group, parts)),
            ),
        }
    }
    let cost = |parts: &[Price]| parts.iter().map(|part| part.time).max().unwrap_or(0);
    groups.sort_by_key(|&(table, group, parts)| (std::cmp::Reverse(cost(parts)), table, group));
    let mut hosts_of: Vec<Vec<(usize, usize)>> = vec![Vec::new(); tables.len()];
    for (table, group, parts) in groups {
        let host_ranks = |host: usize| host * shape.ranks_per_host..(host + 1) * shape.ranks_per_host;
        let fits = |host: &usize| {
            host_ranks(*host).zip(parts).all(|(rank, &part)| ranks.fits(rank, part))
                && hosts_of[table].iter().all(|(_, taken)| taken != host)
        };
        let after = |host: usize| {
            host_ranks(host)
                .zip(parts)
                .map(|(rank, part)| ranks.loads[rank].time + part.time)
                .max()
                .unwrap_or(0)
        };
        let host = (0..shape.hosts).filter(fits).min_by_key(|&host| (after(host), host))?;
        host_ranks(host).zip(parts).for_each(|(rank, &part)| ranks.add(rank, part));
        hosts_of[table].push((group, host));
    }
    for (places, mut hosts) in places.iter_mut().zip(hosts_of) {
        hosts.sort_unstable();
        places.extend(
            hosts
                .iter()
                .flat_map(|&(_, host)| host * shape.ranks_per_host..(host + 1) * shape.ranks_per_host),
        );
    }
    let over = ranks.loads.iter().any(|load| load.memory > shape.capacity);
    (!over).then_some(Fixed { ranks, places })
}

/// The same with the busiest rank's costliest table cut into smaller parts, if that is better.
fn split_busiest(tables: &[Vec<Choice>], found: &Found, shape: Shape) -> Option<Found> {
    let busiest =
        (0..found.loads.len()).max_by_key(|&rank| (found.loads[rank].time, std::cmp::Reverse(rank)))?;
    let mut parts: Vec<(u64, usize)> = Vec::new();
    for (table, ranks) in found.ranks.iter().enumerate() {
        let choice = &tables[table][found.choices[table]];
        let own = ranks.iter().zip(&choice.parts).filter(|(rank, _)| **rank == busiest);
        parts.extend(own.map(|(_, part)| (part.time, table)));
    }
    parts.sort_by_key(|&(time, table)| (std::cmp::Reverse(time), table));
    for (time, table) in parts.into_iter().take(3) {
        let Some(smaller) =
            select(&tables[table], shape, time.saturating_sub(1), shape.capacity, Elsewhere::All)
        else {
            continue;
        };
        let mut chosen = found.choices.clone();
        chosen[table] = smaller;
        let better = place_all(tables, &chosen, shape).filter(|other| other.time_max() < found.time_max());
        if better.is_some() {
            return better;
        }
    }
    None
}

/// Single moves and swaps of the parts that may go anywhere.
fn polish(tables: &[Vec<Choice>], found: &mut Found, shape: Shape) {
    let items = items_of(tables, &found.choices);
    let free = |table: usize| tables[table][found.choices[table]].spread == Spread::Ranks;
    let mut places: Vec<usize> =
        (0..tables.len()).filter(|&table| free(table)).flat_map(|table| found.ranks[table].clone()).collect();
    let mut ranks = Ranks { loads: found.loads.clone(), capacity: shape.capacity };
    improve(&mut ranks, &items, &mut places, MOVES_MAX);
    found.loads = ranks.loads;
    let free_tables: Vec<usize> = (0..tables.len()).filter(|&table| free(table)).collect();
    let mut next = places.into_iter();
    for table in free_tables {
        for rank in &mut found.ranks[table] {
            *rank = next.next().unwrap_or(*rank);
        }
    }
}
