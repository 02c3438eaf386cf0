package sim

const (
	// pinRounds is the number of times that each pin of a rule is tried before other seeds. Several tries are needed
	// because a seed does not determine everything: it determines the faults and the calls, but the order in which
	// goroutines run differs from run to run. The weakest pins reveal the missing rule in only one of eight runs.
	pinRounds = 12
	// seedsMax is the maximum number of seeds that are tried for a rule. No rule needs nearly as many.
	seedsMax = 3000
)

// pins are, for each rule, seeds that nearly always reveal that the rule is missing. The seed with the shortest run
// comes first. As the code changes, a pin may stop working. TestEveryRuleIsNeeded then prints PIN, and TestPins finds
// other seeds.
var pins = map[string][]uint64{
	"acknowledged means synced":                                {4, 6, 2},
	"a promise waits for the sync":                             {69, 13, 14, 70, 101},
	"a vote is remembered":                                     {1, 2, 3},
	"a read asks the majority":                                 {3, 1, 2},
	"a refusal asks the majority":                              {1, 2, 3},
	"an answer belongs to its question":                        {32, 30},
	"requests are remembered over a failover":                  {4, 1, 2},
	"a request id is that of one write":                        {2, 1, 3},
	"a write that did nothing is remembered":                   {7, 2, 4},
	"requests are remembered whatever the clock says":          {2, 1, 4},
	"a delete is kept while it may be repeated":                {3, 1, 2},
	"a request is remembered when its write is compacted away": {4, 1, 2},
	"only what is committed is visible":                        {13, 31},
	"a leader serves what its predecessors committed":          {13, 17, 18, 29},
	"a lease ends": {12, 9, 3},
	"who may have promised a lease gives no vote":                           {1, 3, 2},
	"a lead that is handed over has no lease":                               {1, 2, 3},
	"nor has one whose handing over was given up":                           {1, 3, 2},
	"who has answered its leader forgets it only when that is silent":       {1, 2, 3},
	"an emptied volume is another replica":                                  {4, 3, 5},
	"a volume rolled back is another replica":                               {1, 2, 3},
	"a volume set back to an image of its running shard is another replica": {1, 2, 3},
	"a copy of a volume is no replica":                                      {1, 2, 3},
	"an entry is promised with its blob":                                    {2, 3, 1},
	"who is damaged does not come to lead":                                  {1, 3},
	"who lost what it acknowledged gives no vote":                           {8, 10, 40, 66, 82, 134},
	"what cannot be read is no torn write":                                  {1, 7},
	"what a bad record of the journal held is lost, not unwritten":          {27, 20},
	"what the journal holds is written after a power cut":                   {1, 2, 3},
	"the journal's room is free when the segments are synced":               {1, 2, 3},
	"a repair comes from one that has applied as much":                      {2, 10},
	"a leader obeys the hold":                                               {1, 3, 4},
	"members obey the hold":                                                 {1, 3, 4},
	"an installed copy obeys the hold":                                      {1, 2, 3},
	"the hold is the least one of all views":                                {1, 3, 4},
	"the index of a view is chosen when a majority holds":                   {3},
	"the index of a view is chosen behind a read barrier of the leader":     {2, 3, 4},
	"members hold what the leader reports":                                  {4, 9, 10},
	"the report of a hold outlives the lead":                                {21, 41, 49},
	"a hold that is not known yet holds everything":                         {1, 4, 9},
}
