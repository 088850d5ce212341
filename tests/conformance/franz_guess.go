// Which release of Kafka franz-go takes a broker for, and how its admin client shows what is refused: JSON on standard
// output.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	check(err)
	defer client.Close()
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client)
	check(err)
	told := kversion.FromApiVersionsResponse(answer)

	admin := kadm.NewClient(client)
	_, tokens := admin.DescribeDelegationTokens(ctx)
	user, limit := "alice", 1024.0
	entity := kadm.ClientQuotaEntity{{Type: "user", Name: &user}}
	set, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
		Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: limit}},
	}})
	check(err)
	removed, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
		Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Remove: true}},
	}})
	check(err)
	check(json.NewEncoder(os.Stdout).Encode(map[string]string{
		"guess":         told.VersionGuess(),
		"tokens":        text(tokens),
		"limit":         text(set[0].Err),
		"limit_message": set[0].ErrMessage,
		"no_limit":      text(removed[0].Err),
	}))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
